# SPDX-License-Identifier: Apache-2.0
# Shows the result of check_consolidate.py for one checkpoint, and fails unless it is PASS.
file(READ ${RESULT} text)
message("${text}")
if(NOT text MATCHES "^PASS\n")
  message(FATAL_ERROR "not as PyTorch has it")
endif()
