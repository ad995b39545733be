// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/remote_stores.h"

#include "formats/bytes/remote/hub_store.h"
#include "formats/bytes/remote/s3_store.h"
#include "formats/bytes/remote/web_store.h"

namespace fsdp::formats {

void register_remote_stores() {
  register_store("s3://", amazon_store);
  register_store("gs://", google_store);
  register_store("hf://", hub_store);
  register_store("https://", web_store);
  register_store("http://", web_store);
}

}  // namespace fsdp::formats
