# SPDX-License-Identifier: Apache-2.0
"""Defects that a tier of the tests has to notice: a wrong offset, a lost check, an ignored option, each in a room of its own.

MUTANT(n) is true in a run with FSDP_MUTANT=n, and false in all others: one build holds all of them.
"""

# (file, its text, the text with the defect)
MUTANTS = [
    ("formats/state/model/tiling.cpp", "if (begin_of(box, d) > covered) note_gap", "if (!MUTANT(1) && begin_of(box, d) > covered) note_gap"),
    ("formats/containers/zip/local_headers.cpp", "      if (found == expected) return;", "      if (MUTANT(2) || found == expected) return;"),
    ("formats/families/safetensors/parser.cpp", "if (++offset_count_ > 2)", "if (++offset_count_ > (MUTANT(3) ? 3 : 2))"),
    ("formats/families/dcp/verify.cpp", "if (item.location.offset < end && last", "if (!MUTANT(4) && item.location.offset < end && last"),
    ("formats/bytes/outputs/atomic_file.cpp", "if (!options_.replace) throw", "if (!MUTANT(5) && !options_.replace) throw"),
    ("formats/families/trainers/deepspeed_model.cpp", "groups.file, &tensor, begin - from});", "groups.file, &tensor, begin - from + (MUTANT(6) ? 1 : 0)});"),
    ("formats/state/rewrite/rename.cpp", "    if (used != 0) return;\n    std::set<std::string> fronts;",
     "    if (MUTANT(7) || used != 0) return;\n    std::set<std::string> fronts;"),
    ("formats/changes/map/matching.cpp", "if (found_[r].empty() && !rule.optional) throw", "if (!MUTANT(8) && found_[r].empty() && !rule.optional) throw"),
    ("formats/bytes/http/exchange.cpp", "if (hop == kMaxRedirects) {", "if (hop == kMaxRedirects + (MUTANT(9) ? 1 : 0)) {"),
    ("libfsdp/internal/engine/reduction.cpp", "if (divisor != ranks) tensor.div_", "if (!MUTANT(10) && divisor != ranks) tensor.div_"),
    ("libfsdp/sharded/clip_grad.cpp", "if (!gradients.empty() && !infinite) part = part.pow", "if (!gradients.empty() && (MUTANT(11) || !infinite)) part = part.pow"),
    ("tools/verbs/checking/prune.cpp", "if (found.sound.size() == static_cast<std::size_t>(*keep_)) {",
     "if (found.sound.size() + (MUTANT(12) ? 1 : 0) >= static_cast<std::size_t>(*keep_)) {"),
]
