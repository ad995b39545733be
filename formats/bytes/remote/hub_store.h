// SPDX-License-Identifier: Apache-2.0
// Repositories of the Hugging Face Hub, which are only read.
// Source: "Hub API Endpoints" in its documentation, and what huggingface_hub asks for.
#pragma once

#include <memory>

#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// hf://org/repo[@revision]/path, and hf://datasets/org/repo...; at HF_ENDPOINT, else
// https://huggingface.co.  HF_TOKEN, or the token that `huggingface-cli login` left, is sent to
// that host alone. Throws: kUnsupported where libcurl cannot be loaded; kUsage for settings that
// make no sense.
std::unique_ptr<Store> hub_store();

}  // namespace fsdp::formats
