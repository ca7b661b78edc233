// Deadlines and stopwatches on this machine's steady clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>

namespace troika {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// A point in time by which a blocking call must return.
class Deadline {
 public:
  // The deadline `span` from now. Limited to the clock's maximum.
  template <typename Rep, typename Period>
  static Deadline after(std::chrono::duration<Rep, Period> span) {
    const auto now = Clock::now();
    const auto longest = std::chrono::floor<decltype(span)>(Clock::time_point::max() - now);
    return Deadline(span < longest ? now + span : Clock::time_point::max());
  }

  bool passed() const { return Clock::now() >= at_; }
  // The remaining time, rounded up to milliseconds; 0 after the deadline. Suits poll() and
  // condition variables.
  Milliseconds left() const {
    return std::max(Milliseconds(0), std::chrono::ceil<Milliseconds>(at_ - Clock::now()));
  }
  Clock::time_point at() const { return at_; }
  auto operator<=>(const Deadline&) const = default;

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

// Seconds since construction or the last restart().
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void restart() { start_ = Clock::now(); }

 private:
  Clock::time_point start_ = Clock::now();
};

}  // namespace troika
