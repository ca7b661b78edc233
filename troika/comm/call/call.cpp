#include "troika/comm/call/call.h"

#include <c10/core/DeviceType.h>
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/comm/call/direction.h"

namespace troika::comm {

namespace {

constexpr std::array<std::string_view, 10> kOperations{
    "all_reduce", "reduce",  "reduce_scatter", "all_gather", "broadcast",
    "gather",     "scatter", "all_to_all",     "barrier",    "measure_links",
};
constexpr std::array<std::string_view, 6> kAlgorithms{
    "auto", "ring", "recursive_doubling", "rabenseifner", "double_tree", "hierarchical",
};

}  // namespace

std::string_view name(Operation operation) {
  return kOperations.at(static_cast<size_t>(operation));
}

std::string_view name(Direction direction) {
  return direction == Direction::send ? "send" : "receive";
}

std::string_view name(Algorithm algorithm) {
  return kAlgorithms.at(static_cast<size_t>(algorithm));
}

Algorithm algorithm_from(std::string_view name) {
  for (size_t i = 0; i < kAlgorithms.size(); ++i) {
    if (kAlgorithms[i] == name) return static_cast<Algorithm>(i);
  }
  throw Error(
      "comm", ErrorKind::usage,
      {.what = "unknown all-reduce algorithm",
       .got = std::string(name),
       .hint = "did you mean " + nearest(name, {kAlgorithms.begin(), kAlgorithms.end()}) + "?"});
}

bool CollectiveFingerprint::matches(const CollectiveFingerprint& other) const {
  return sequence == other.sequence && count == other.count && splits == other.splits &&
         operation == other.operation && type == other.type && reduce_op == other.reduce_op &&
         root == other.root && algorithm == other.algorithm && device == other.device;
}

std::string CollectiveFingerprint::describe() const {
  std::string text = fmt::format("{} #{}", name(static_cast<Operation>(operation)), sequence);
  if (label[0]) text += fmt::format(" '{}'", label);
  if (site[0]) text += fmt::format(" ({})", site);
  if (type >= 0) {
    text += fmt::format(" of {}", c10::toString(static_cast<c10::ScalarType>(type)));
    if (count >= 0) text += fmt::format(" x {}", count);
    if (splits != 0) text += " in uneven blocks";
  }
  if (reduce_op >= 0) text += fmt::format(" {}", name(static_cast<ReduceOp>(reduce_op)));
  if (root >= 0) text += fmt::format(" with root {}", root);
  if (device != 0) {
    text += fmt::format(" on {}", c10::DeviceTypeName(static_cast<c10::DeviceType>(device), true));
  }
  if (algorithm != 0) text += fmt::format(" by {}", name(static_cast<Algorithm>(algorithm)));
  return text;
}

}  // namespace troika::comm
