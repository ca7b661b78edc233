#include "troika/comm/timeline.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "troika/base/file.h"
#include "troika/comm/messages/group_impl.h"

namespace troika::comm {

namespace {

// Only the best exchange counts; the first ones open connections.
constexpr int kExchanges = 20;
constexpr int kTag = kLargestTag;

at::Tensor of_time(Clock::time_point time) {
  return at::full({1}, int64_t{time.time_since_epoch().count()}, at::kLong);
}

Clock::time_point to_time(const at::Tensor& tensor) {
  return Clock::time_point(Clock::duration(tensor.item<int64_t>()));
}

at::Tensor receive_time(const Group& group, int peer) {
  const auto time = at::empty({1}, at::kLong);
  group.receive(time, peer, kTag).wait();
  return time;
}

void answer(const Group& group, int peer, const Now& now) {
  for (int i = 0; i < kExchanges; ++i) {
    receive_time(group, peer);
    group.send(of_time(now()), peer, kTag).wait();
  }
}

std::vector<ClockExchange> ask(const Group& group, const Now& now) {
  std::vector<ClockExchange> exchanges;
  for (int i = 0; i < kExchanges; ++i) {
    ClockExchange exchange{.sent = now(), .there = {}, .received = {}};
    group.send(of_time(exchange.sent), 0, kTag).wait();
    exchange.there = to_time(receive_time(group, 0));
    exchange.received = now();
    exchanges.push_back(exchange);
  }
  return exchanges;
}

std::string host_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

// Returns all ranks' values, in rank order.
std::vector<int64_t> gather_numbers(const Group& group, int64_t mine) {
  const auto all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, mine, at::kLong), {}, {.label = "timeline"});
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + group.size()};
}

// Returns all ranks' texts on rank 0, an empty list elsewhere.
std::vector<std::string> gather_texts(const Group& group, const std::string& text) {
  const auto lengths = gather_numbers(group, static_cast<int64_t>(text.size()));
  const int64_t longest = *std::ranges::max_element(lengths);
  const auto own = at::zeros({longest}, at::kByte);
  std::memcpy(own.data_ptr(), text.data(), text.size());
  const bool is_root = group.rank() == 0;
  const auto all = is_root ? at::empty({group.size(), longest}, at::kByte) : at::Tensor();
  group.gather(all, own, 0, {.label = "timeline"});
  std::vector<std::string> texts;
  if (!is_root) return texts;
  const auto* start = static_cast<const char*>(all.data_ptr());
  for (const int64_t length : lengths) {
    texts.emplace_back(start, static_cast<size_t>(length));
    start += longest;
  }
  return texts;
}

}  // namespace

ClockOffset measure_clock_offset(const Group& group, const Now& now) {
  ClockOffset mine{.at = now()};
  for (int r = 1; r < group.size(); ++r) {
    if (group.rank() == 0) answer(group, r, now);
    if (group.rank() == r) mine = clock_offset(ask(group, now));
  }
  return mine;
}

Timeline::Timeline(Group group, Now now)
    : group_(std::move(group)), now_(std::move(now)), first_(measure_clock_offset(group_, now_)) {
  const auto origin = of_time(now_());
  group_.broadcast(origin, 0, {.label = "timeline"});
  origin_ = to_time(origin);
}

void Timeline::write(const std::filesystem::path& path, const std::string& name) {
  const AlignedClock clock(first_, measure_clock_offset(group_, now_));
  const auto errors = gather_numbers(group_, clock.error().count());
  const auto texts =
      gather_texts(group_, trace_elements({.rank = group_.rank(),
                                           .name = fmt::format("{} on {}", name, host_name()),
                                           .events = trace_.events()},
                                          clock, origin_));
  if (group_.rank() != 0) return;
  write_file_atomically(path, trace_file(texts, {errors.begin(), errors.end()}, trace_.steps()));
}

}  // namespace troika::comm
