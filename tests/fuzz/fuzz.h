// The interface of a fuzz target. Its program is linked with driver.cpp, which mutates inputs from
// a seed, or with libfuzzer.cpp, whose inputs follow the coverage (scripts/test-fuzz).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika::fuzz {

// Inputs to begin with: valid ones, so that mutations get past the first check.
std::vector<std::string> seeds();

// Gives an input to the code under test. It may refuse the input with troika::Error and nothing
// else; any other exception, a crash, a hang and memory beyond the driver's bound are faults.
void run(std::string_view input);

}  // namespace troika::fuzz
