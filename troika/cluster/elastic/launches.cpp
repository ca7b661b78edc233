#include "troika/cluster/elastic/launches.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/cluster/rendezvous/roster.h"

namespace troika::cluster {

std::string Launches::name_of(const AgentHello& hello) {
  return fmt::format("process {} on {}", hello.pid, hello.host);
}

std::optional<Refusal> Launches::refusal_of(const AgentHello& hello) const {
  if (hello.protocol != kProtocolVersion) {
    return Refusal{
        ErrorKind::usage,
        {.what = "launches run different versions of Troika",
         .got = fmt::format("protocol {} from {}", hello.protocol, name_of(hello)),
         .expected = fmt::format("protocol {} as {} speaks", kProtocolVersion, name_of(host_))}};
  }
  const auto [own, others] = std::ranges::mismatch(hello.options, host_.options);
  if (own != hello.options.end() || others != host_.options.end()) {
    const bool is_same =
        own != hello.options.end() && others != host_.options.end() && own->first == others->first;
    const auto value = [&](const auto& it, const auto& of) {
      return it == of.end() ? "fewer options" : is_same ? it->second : it->first;
    };
    return Refusal{ErrorKind::usage,
                   {.what = fmt::format("launches of one run disagree on {}",
                                        is_same ? own->first : "which options there are"),
                    .got = fmt::format("{} from {}", value(own, hello.options), name_of(hello)),
                    .expected = fmt::format("{} as {} has, which hosts them",
                                            value(others, host_.options), name_of(host_))}};
  }
  const auto hosts = [](const auto& entry) { return entry.second.hello.hosts; };
  if (hello.hosts && std::ranges::any_of(launches_, hosts)) {
    return Refusal{ErrorKind::usage,
                   {.what = "two launches host one run",
                    .got = name_of(hello),
                    .expected = fmt::format("{} alone", name_of(host_))}};
  }
  return std::nullopt;
}

std::vector<int> Launches::ready() const {
  std::vector<int> result;
  for (const auto& [number, launch] : launches_) {
    if (launch.is_departing) continue;
    result.insert(launch.hello.hosts ? result.begin() : result.end(), number);
  }
  return result;
}

std::vector<int> Launches::take_all() {
  std::vector<int> numbers;
  for (const auto& [number, launch] : std::exchange(launches_, {})) numbers.push_back(number);
  return numbers;
}

}  // namespace troika::cluster
