// SPDX-License-Identifier: Apache-2.0
// Reads repositories and buckets of the Hugging Face Hub, and lists the digests of their files.
// Source: "Hub API Endpoints" in its documentation, and the requests of huggingface_hub.
#pragma once

#include <memory>

#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// Reads hf://org/repo[@revision]/path, hf://datasets/org/repo... and hf://buckets/org/name/path at
// HF_ENDPOINT, else at https://huggingface.co.  HF_TOKEN, or the token of `hf auth login`, is sent
// to that host only.  The store is a Publisher (published.h), for repositories: it takes one
// request for the commit, and one for each page of the list of files.
// Throws: kUnsupported where libcurl cannot be loaded; kUsage for invalid settings.
std::unique_ptr<Store> hub_store();

}  // namespace fsdp::formats
