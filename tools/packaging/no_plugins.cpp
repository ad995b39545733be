// SPDX-License-Identifier: Apache-2.0
// Replaces dlopen() for libhdf5 in the static fsdp-ckpt by a loader that loads nothing.
//
// libhdf5's archive can load plugins for filters.  fsdp-ckpt decodes filters itself and turns
// plugins off, and a static program that loaded a library would run a second C library inside
// itself.  The linker's --wrap turns each call of dlopen() into one of __wrap_dlopen(), so the
// loader of the C library has no caller.

extern "C" {

void* __wrap_dlopen(const char* /*file*/, int /*mode*/) {
  return nullptr;
}

void* __wrap_dlsym(void* /*handle*/, const char* /*name*/) {
  return nullptr;
}

int __wrap_dlclose(void* /*handle*/) {
  return -1;
}

char* __wrap_dlerror() {
  static char words[] = "a static program loads no plugins";
  return words;
}
}
