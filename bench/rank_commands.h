// The commands that a script beside this file gives to the ranks that it has started
// (training_ranks.py).
#pragma once

#include <fmt/format.h>

#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/comm/group.h"
#include "troika/compat/torch.h"

namespace troika {

// Returns an argument of a rank's program. Throws Error(usage) unless it is a number >= 0.
inline double number_of(const char* text) {
  const auto value = parse_double(text);
  if (value && *value >= 0) return *value;
  throw Error(
      "bench", ErrorKind::usage,
      {.what = "an argument of a rank's program", .got = text, .expected = "a number >= 0"});
}

// Reads commands "NAME N" from the standard input, one per line, until it ends, and answers each
// with a line of JSON: the result of the function of this name for N.
inline void answer_commands(
    const std::map<std::string, std::function<nlohmann::json(int times)>>& commands) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int times = 0;
    words >> command >> times;
    const auto found = commands.find(command);
    if (found == commands.end()) {
      throw Error("bench", ErrorKind::usage,
                  {.what = "a command to a rank", .got = line, .expected = "a known name"});
    }
    std::cout << found->second(times) << std::endl;
  }
}

// Returns the seconds of each of `times` steps, which begin together, on the rank where it took
// longest. Called by all ranks.
inline nlohmann::json seconds_of_steps(const comm::Group& world, int times,
                                       const std::function<void()>& step) {
  auto seconds = nlohmann::json::array();
  for (int i = 0; i < times; ++i) {
    world.barrier();
    const Stopwatch watch;
    step();
    const auto took = at::full({1}, watch.seconds(), at::kDouble);
    world.all_reduce(took, comm::ReduceOp::max).wait();
    seconds.push_back(took.item<double>());
  }
  return {{"step", seconds}};
}

}  // namespace troika
