#include "troika/server/call.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace troika::server {

void check_answer(const RangeRequest& request, const Answer& plain) {
  if (!plain.error.empty()) return;
  const auto& table = request.call->table;
  const bool has_lengths = table.width == 0 && reads(request.operation);
  uint64_t expected =
      reads(request.operation) ? request.keys.count * width_of(table, request.operation) : 0;
  if (request.operation == Operation::compute) expected = request.call->numbers.size();
  if (has_lengths) {
    expected = std::accumulate(plain.lengths.begin(), plain.lengths.end(), uint64_t{0});
  }
  if (plain.lengths.size() == (has_lengths ? request.keys.count : 0) &&
      plain.values.size() == expected * size_of(table.type)) {
    return;
  }
  throw Error("server", ErrorKind::failure,
              {.what = "an answer has another number of values",
               .got = std::to_string(plain.values.size()) + " bytes",
               .expected = std::to_string(expected * size_of(table.type))});
}

void Call::assemble() {
  if (requests.empty() || !reads(requests.front()->operation)) return;
  if (requests.front()->operation == Operation::compute) return combine_numbers();
  const size_t size = size_of(table.type);
  uint64_t keys = 0;
  for (const auto& request : requests) keys += request->keys.count;
  const uint64_t width = width_of(table, requests.front()->operation);
  // The index of each key's first value.
  std::vector<uint64_t> begins;
  if (width == 0) {
    lengths.resize(keys);
    for (const auto& request : requests) {
      const auto answer = parse_answer(*request->answer);
      for (size_t i = 0; i < answer.lengths.size(); ++i) {
        lengths[request->keys.position(i)] = answer.lengths[i];
      }
    }
    begins.resize(keys + 1);
    for (size_t i = 0; i < keys; ++i) begins[i + 1] = begins[i] + lengths[i];
  }
  // The values of consecutive keys follow each other in the order of requests.
  const auto is_run = [](const auto& request) { return request->keys.positions.empty(); };
  if (width > 0 && std::ranges::all_of(requests, is_run)) {
    values.reserve(keys * width * size);
    for (const auto& request : requests) {
      const auto answered = parse_answer(*request->answer).values;
      values.insert(values.end(), answered.begin(), answered.end());
    }
    return;
  }
  values.resize((width == 0 ? begins.back() : keys * width) * size);
  for (const auto& request : requests) {
    const auto answer = parse_answer(*request->answer);
    const auto& group = request->keys;
    const auto begin = [&](uint64_t key) {
      return (width == 0 ? begins[key] : key * width) * size;
    };
    if (group.positions.empty()) {
      std::ranges::copy(answer.values, values.begin() + static_cast<ptrdiff_t>(begin(group.first)));
      continue;
    }
    size_t at = 0;
    for (const uint64_t key : group.positions) {
      const size_t bytes = (width == 0 ? lengths[key] : width) * size;
      std::memcpy(values.data() + begin(key), answer.values.data() + at, bytes);
      at += bytes;
    }
  }
}

void Call::combine_numbers() {
  std::vector<double> combined(numbers.size());
  for (const auto& request : requests) {
    const auto answered = parse_answer(*request->answer).values;
    for (size_t i = 0; i < numbers.size(); ++i) {
      double number = 0;
      std::memcpy(&number, answered.data() + i * sizeof(number), sizeof(number));
      combined[i] = combine(numbers[i], combined[i], number);
    }
  }
  values.resize(combined.size() * sizeof(double));
  if (!combined.empty()) std::memcpy(values.data(), combined.data(), values.size());
}

void Call::finish() {
  is_done = true;
  for (const auto& listener : std::exchange(listeners, {})) listener();
}

int64_t Handle::timestamp() const {
  return call_->timestamp;
}

bool Handle::is_done() const {
  bool is_done = false;
  net::act_on(call_->endpoint, [&] { is_done = call_->is_done; });
  return is_done;
}

void Handle::wait(Deadline deadline) const {
  if (!call_->endpoint.run_until([this] { return call_->is_done; }, time_left(deadline))) {
    std::string missing;
    net::act_on(call_->endpoint, [&] { missing = call_->missing(); });
    throw Error("server", ErrorKind::timeout,
                {.what = call_->what + " did not finish in time", .got = missing});
  }
  if (!call_->failure.text.empty()) {
    throw Error("server", call_->failure.kind,
                {.what = call_->what + " failed: " + call_->failure.text});
  }
}

void Handle::then(std::function<void()> listener) const {
  net::act_on(call_->endpoint, [&] {
    if (call_->is_done) {
      listener();
    } else {
      call_->listeners.push_back(std::move(listener));
    }
  });
}

std::string Handle::error() const {
  return call_->failure.text;
}

std::span<const char> Handle::value_bytes(ValueType type) const {
  if (call_->table.type != type) {
    throw Error("server", ErrorKind::usage,
                {.what = "the values of " + call_->what + " have another type",
                 .got = type == ValueType::float32 ? "float" : "double",
                 .expected = type == ValueType::float32 ? "double" : "float"});
  }
  return call_->values;
}

std::span<const uint32_t> Handle::lengths() const {
  return call_->lengths;
}

}  // namespace troika::server
