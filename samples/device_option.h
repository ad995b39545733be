// SPDX-License-Identifier: Apache-2.0
// --device of the samples: cpu, cuda (the device of the rank's place on its node), cuda:N, or auto
// (cuda if the program and the machine have it, else cpu).
#pragma once

#include <string>

#include <c10/core/Device.h>

// Takes "--device WORD" out of the arguments, and returns the word; "cpu" if there is none.
// Throws: std::invalid_argument if no word follows.
std::string take_device_option(int& argc, char** argv);

// Returns ProcessGroupOptions::device_id for the word.
// Throws: std::invalid_argument if the word is not one of those above; std::runtime_error saying
// what is missing if this program or machine does not have CUDA or that device, or if several ranks
// would share cuda:N.
c10::Device device_of_option(const std::string& word);
