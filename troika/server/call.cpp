#include "troika/server/call.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace troika::server {

namespace {

// Returns how many bytes of values the answer to the request has.
uint64_t answer_bytes(const RangeRequest& request, const Answer& plain) {
  const auto& call = *request.call;
  const auto operation = request.operation;
  uint64_t values = 0;
  if (operation == Operation::compute) {
    values = call.numbers.size();
  } else if (reads(operation) && call.table.width == 0) {
    values = std::accumulate(plain.lengths.begin(), plain.lengths.end(), uint64_t{0});
  } else if (reads(operation)) {
    values = request.keys.count * width_of(call.table, operation);
  }
  return values * size_of(call.table.type);
}

}  // namespace

void check_answer(const RangeRequest& request, const Answer& plain) {
  if (!plain.error.empty()) return;
  const bool has_lengths = request.call->table.width == 0 && reads(request.operation);
  const uint64_t got = plain.values.size();
  const uint64_t expected = answer_bytes(request, plain);
  if (plain.lengths.size() == (has_lengths ? request.keys.count : 0) && got == expected) return;
  throw Error("server", ErrorKind::failure,
              {.what = "an answer has another number of values",
               .got = std::to_string(got) + " bytes",
               .expected = std::to_string(expected)});
}

void Call::prepare(Operation operation, uint64_t keys, const std::optional<ValueMemory>& into) {
  if (into) {
    memory = {into->bytes, into->owner};
  } else if (reads(operation) && table.width > 0) {
    allocate(keys * width_of(table, operation) * size_of(table.type));
  }
}

void Call::allocate(size_t bytes) {
  const auto allocated = std::make_shared_for_overwrite<char[]>(bytes);
  memory = {{allocated.get(), bytes}, allocated};
}

std::span<char> Call::place_of(const RangeRequest& request) const {
  const auto& [range, first, count, positions] = request.keys;
  const bool is_known = reads(request.operation) && request.operation != Operation::compute &&
                        table.width > 0 && positions.empty();
  if (!is_known) return {};
  const size_t bytes = width_of(table, request.operation) * size_of(table.type);
  return memory.bytes.subspan(first * bytes, count * bytes);
}

void Call::take(RangeRequest& request, const Message& plain) const {
  const auto operation = request.operation;
  if (!reads(operation)) return;
  if (operation == Operation::compute || table.width == 0) {
    request.answer = plain;
    return;
  }
  const auto answered = parse_answer(*plain).values;
  const auto& positions = request.keys.positions;
  if (positions.empty()) {
    std::ranges::copy(answered, place_of(request).begin());
    return;
  }
  const size_t bytes = width_of(table, operation) * size_of(table.type);
  for (size_t i = 0; i < positions.size(); ++i) {
    std::memcpy(memory.bytes.data() + positions[i] * bytes, answered.data() + i * bytes, bytes);
  }
}

void Call::assemble() {
  if (requests.empty() || !reads(requests.front()->operation)) return;
  if (requests.front()->operation == Operation::compute) {
    combine_numbers();
  } else if (table.width == 0) {
    combine_lengths();
  }
}

void Call::combine_lengths() {
  uint64_t keys = 0;
  for (const auto& request : requests) keys += request->keys.count;
  lengths.resize(keys);
  for (const auto& request : requests) {
    const auto answer = parse_answer(*request->answer);
    for (size_t i = 0; i < answer.lengths.size(); ++i) {
      lengths[request->keys.position(i)] = answer.lengths[i];
    }
  }
  const size_t size = size_of(table.type);
  std::vector<uint64_t> begins(keys + 1);  // the first byte of each key's values
  for (size_t i = 0; i < keys; ++i) begins[i + 1] = begins[i] + lengths[i] * size;
  allocate(begins.back());
  for (const auto& request : requests) {
    const auto answer = parse_answer(*request->answer);
    size_t at = 0;
    for (uint64_t i = 0; i < request->keys.count; ++i) {
      const uint64_t key = request->keys.position(i);
      const size_t bytes = lengths[key] * size;
      std::ranges::copy(answer.values.subspan(at, bytes),
                        memory.bytes.begin() + static_cast<ptrdiff_t>(begins[key]));
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
  allocate(combined.size() * sizeof(double));
  if (!combined.empty()) std::memcpy(memory.bytes.data(), combined.data(), memory.bytes.size());
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
  return call_->values();
}

std::span<const uint32_t> Handle::lengths() const {
  return call_->lengths;
}

}  // namespace troika::server
