// The messages between summation servers and their workers. Internal to the room.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "troika/base/error.h"
#include "troika/net/endpoint.h"
#include "troika/server/summation.h"
#include "troika/server/wire.h"

namespace troika::server {

inline constexpr net::Channel kPushes = 0x7375'0000;
inline constexpr net::Channel kSummationFailures = kPushes + 1;
inline constexpr net::Channel kWatches = kPushes + 2;     // nothing is ever sent here
inline constexpr net::Channel kReceived = kPushes + 3;    // the key and the round of a push
inline constexpr net::Channel kLevels = kPushes + 4;      // see SummationServer
inline constexpr net::Channel kMeans = 0x7376'0000'0000;  // and the key
inline constexpr uint64_t kHello = ~uint64_t{0};          // the key of a push without values
inline constexpr size_t kPushHead = 40;
inline constexpr size_t kMostFailure = 4096;
inline constexpr uint32_t kMostSummationWorkers = 1'000'000;

// The head stands before the values of a push.
struct PushHead {
  uint64_t key = kHello, round = 0;
  uint32_t rank = 0, workers = 0;
  ValueType type = ValueType::float32;
  SummationAction action = SummationAction::sum;
  SumForm form = SumForm::plain;
  bool has_feedback = false;
  uint32_t parameter = 0;  // see SumCoding
  bool has_l2_norm = false;
  double rate = 1;  // the learning rate of the step

  // Returns kPushHead bytes.
  std::string text() const {
    std::string bytes;
    Writer writer(bytes);
    writer.number(key);
    writer.number(round);
    writer.number(rank);
    writer.number(workers);
    writer.number(type);
    writer.number(action);
    writer.number(form);
    writer.number(static_cast<uint8_t>((has_feedback ? 1 : 0) + (has_l2_norm ? 2 : 0)));
    writer.number(parameter);
    writer.number(rate);
    return bytes;
  }
  // Throws Error(server, failure) for a message that is not a push.
  static PushHead parse(std::string_view message) {
    Reader reader(message);
    PushHead head;
    head.key = reader.number<uint64_t>();
    head.round = reader.number<uint64_t>();
    head.rank = reader.number<uint32_t>();
    head.workers = reader.number<uint32_t>();
    head.type = reader.number<ValueType>();
    head.action = reader.number<SummationAction>();
    head.form = reader.number<SumForm>();
    const auto flags = reader.number<uint8_t>();
    head.has_feedback = (flags & 1) != 0;
    head.has_l2_norm = (flags & 2) != 0;
    head.parameter = reader.number<uint32_t>();
    head.rate = reader.number<double>();
    const bool is_known = flags <= 3 && std::isfinite(head.rate) && head.rate >= 0 &&
                          head.type <= ValueType::float64 && head.form <= kLastSumForm &&
                          head.action <= SummationAction::probe && head.rank < head.workers &&
                          head.workers <= kMostSummationWorkers;
    if (is_known) return head;
    throw Error("server", ErrorKind::failure, {.what = "a push of an unknown form"});
  }
};

}  // namespace troika::server
