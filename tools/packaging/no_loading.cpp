// SPDX-License-Identifier: Apache-2.0
// Replaces the functions by which the C library of a program loads other libraries.
//
// Loaded into a static program, they would be a second C library inside it.  libhdf5's archive has
// dlopen() for plugins of filters, which fsdp-ckpt decodes itself; OpenSSL's for engines and
// providers, of which the built-in ones are enough.  Names are resolved by c-ares, so nothing calls
// the C library's resolver, which loads what /etc/nsswitch.conf names; OpenSSL and c-ares refer to
// it in functions that libcurl does not use.  The linker's --wrap turns each call of name() into
// one of __wrap_name().

#include <netdb.h>

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

int __wrap_getaddrinfo(const char* /*node*/, const char* /*service*/, const addrinfo* /*hints*/,
                       addrinfo** /*result*/) {
  return EAI_FAIL;
}

hostent* __wrap_gethostbyname(const char* /*name*/) {
  return nullptr;
}

servent* __wrap_getservbyname(const char* /*name*/, const char* /*protocol*/) {
  return nullptr;
}

int __wrap_getservbyname_r(const char* /*name*/, const char* /*protocol*/, servent* /*entry*/,
                           char* /*buffer*/, size_t /*size*/, servent** result) {
  *result = nullptr;
  return 0;
}

int __wrap_getservbyport_r(int /*port*/, const char* /*protocol*/, servent* /*entry*/,
                           char* /*buffer*/, size_t /*size*/, servent** result) {
  *result = nullptr;
  return 0;
}
}
