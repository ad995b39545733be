// SPDX-License-Identifier: Apache-2.0
// Reads repositories of the Hugging Face Hub.
// Source: "Hub API Endpoints" in its documentation, and the requests of huggingface_hub.
#pragma once

#include <memory>

#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// Reads hf://org/repo[@revision]/path and hf://datasets/org/repo... at HF_ENDPOINT, else at
// https://huggingface.co.  HF_TOKEN, or the token of `huggingface-cli login`, is sent to that host
// only.  Throws: kUnsupported where libcurl cannot be loaded; kUsage for invalid settings.
std::unique_ptr<Store> hub_store();

}  // namespace fsdp::formats
