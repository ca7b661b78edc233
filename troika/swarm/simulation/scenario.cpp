#include "troika/swarm/simulation/scenario.h"

#include <algorithm>
#include <array>

#include "troika/base/error.h"

namespace troika::swarm {

namespace {

constexpr std::array<std::string_view, 7> kLies{"none",    "sign_flip",    "scaled",   "constant",
                                                "delayed", "not_a_number", "colluding"};

}  // namespace

SimulatedLie lie_from(std::string_view name) {
  const auto found = std::ranges::find(kLies, name);
  if (found == kLies.end()) {
    throw Error("swarm", ErrorKind::usage,
                {.what = "a lie of simulated peers",
                 .got = std::string(name),
                 .expected = "sign_flip, scaled, constant, delayed, not_a_number or colluding"});
  }
  return static_cast<SimulatedLie>(found - kLies.begin());
}

std::string_view name_of(SimulatedLie lie) {
  return kLies.at(static_cast<size_t>(lie));
}

}  // namespace troika::swarm
