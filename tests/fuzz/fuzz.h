// The interface of a fuzz target. The program is linked with driver.cpp, which mutates inputs by a
// seed, or with libfuzzer.cpp, where libFuzzer chooses inputs by coverage (scripts/test-fuzz).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika::fuzz {

// Returns valid inputs to start from, so that mutations get past the first check.
std::vector<std::string> seeds();

// Calls the code under test with an input. The code may refuse it with troika::Error only; any
// other exception, a crash, a hang and memory beyond the driver's limit are faults.
void run(std::string_view input);

}  // namespace troika::fuzz
