// SPDX-License-Identifier: Apache-2.0
// Headers that nearly every test of the library includes, compiled once.  Files still include what
// they use.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libfsdp/internal/pch.h"
