# SPDX-License-Identifier: Apache-2.0
# Shows what check_consolidate.py found for one checkpoint, and fails where that was no success.
file(READ ${RESULT} text)
message("${text}")
if(NOT text MATCHES "^PASS\n")
  message(FATAL_ERROR "not as PyTorch has it")
endif()
