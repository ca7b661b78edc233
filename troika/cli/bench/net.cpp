#include "troika/cli/bench/net.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <string_view>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/cli/bench/report.h"
#include "troika/net/secret.h"

namespace troika::cli::bench {

namespace {

constexpr int kDeaths = 5;
constexpr int kBurst = 10'000;
constexpr int kLeastIterations = 10;
// A variant runs for this time before the next one has its turn.
constexpr double kTurnSeconds = 0.02;

// Tells the other process which operation to perform.
struct Order {
  int variant = 0;
  NetOperation operation{};
  int64_t bytes = 0;
  int iterations = 0;
};

// The second process. It is killed with this object, and ends with this process.
class Other {
 public:
  explicit Other(const std::function<void(int control)>& run) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      net::fail_system("bench", "make a pair of sockets", errno);
    }
    control_ = net::Descriptor(ends[0]);
    net::Descriptor theirs(ends[1]);
    pid_ = ::fork();
    if (pid_ < 0) net::fail_system("bench", "start a process", errno);
    if (pid_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    control_.reset();
    try {
      run(theirs.get());
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
      ::_exit(exit_code(error));
    }
    ::_exit(0);
  }
  ~Other() {
    kill();
    ::waitpid(pid_, nullptr, 0);
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  int control() const { return control_.get(); }
  void kill() const { ::kill(pid_, SIGKILL); }

 private:
  net::Descriptor control_;
  pid_t pid_ = -1;
};

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string_view name(NetOperation operation) {
  switch (operation) {
    case NetOperation::round_trip:
      return "round_trip";
    case NetOperation::exchange:
      return "exchange";
    case NetOperation::messages:
      return "messages";
    case NetOperation::death:
      break;
  }
  return "death";
}

std::string_view name(Carrier carrier) {
  if (carrier == Carrier::bare) return "bare";
  return carrier == Carrier::message ? "message" : "request";
}

bool can(const NetVariant& variant, NetOperation operation) {
  return variant.carrier != Carrier::request || operation == NetOperation::round_trip;
}

void perform(NetSide& side, const Order& order, bool begins) {
  const auto bytes = static_cast<size_t>(order.bytes);
  switch (order.operation) {
    case NetOperation::round_trip:
      return begins ? side.begin_round_trip(bytes) : side.serve_round_trip(bytes);
    case NetOperation::exchange:
      return side.exchange(bytes);
    case NetOperation::messages:
      return begins ? side.send_burst(kBurst) : side.take_burst(kBurst);
    case NetOperation::death:
      return;
  }
}

// The samples of one variant.
struct Samples {
  std::vector<double> seconds;
  double cpu = 0, total = 0;
};

class Measurement {
 public:
  explicit Measurement(const NetPlan& plan)
      : plan_(plan),
        secret_(net::Secret::random()),
        most_bytes_(static_cast<size_t>(std::ranges::max(plan.sizes))) {}

  std::vector<NetRow> run() {
    std::vector<NetRow> rows;
    const auto add = [&](const Order& order) {
      for (NetRow& row : measure(order)) rows.push_back(std::move(row));
    };
    for (const NetOperation operation : plan_.operations) {
      if (operation == NetOperation::messages) {
        add({0, operation, kBurstBytes, 1});
      } else if (operation != NetOperation::death) {
        for (const int64_t bytes : plan_.sizes) add({0, operation, bytes, 1});
      }
    }
    if (std::ranges::count(plan_.operations, NetOperation::death) > 0) {
      // Processes to be killed are forked while this process has only one thread.
      sides_.clear();
      other_.reset();
      for (const NetVariant& variant : plan_.variants) {
        if (can(variant, NetOperation::death)) rows.push_back(measure_death(variant));
      }
    }
    compare(rows);
    return rows;
  }

 private:
  void start() {
    other_.emplace([this](int control) {
      NetMemory memory(most_bytes_);
      std::vector<std::unique_ptr<NetSide>> sides;
      for (const NetVariant& variant : plan_.variants) {
        sides.push_back(make_side(variant, true, control, secret_, memory));
      }
      for (Order order; get(control, &order, sizeof(order));) {
        for (int i = 0; i < order.iterations; ++i) {
          perform(*sides[static_cast<size_t>(order.variant)], order, false);
        }
      }
    });
    for (const NetVariant& variant : plan_.variants) {
      sides_.push_back(make_side(variant, false, other_->control(), secret_, memory_));
    }
  }

  void take_turn(const Order& order, Samples& samples) {
    put(other_->control(), &order, sizeof(order));
    NetSide& side = *sides_[static_cast<size_t>(order.variant)];
    const double cpu = processor_seconds();
    for (int i = 0; i < order.iterations; ++i) {
      const Stopwatch watch;
      perform(side, order, true);
      samples.seconds.push_back(watch.seconds());
      samples.total += samples.seconds.back();
    }
    samples.cpu += processor_seconds() - cpu;
  }

  std::vector<NetRow> measure(Order order) {
    if (sides_.empty()) start();
    std::vector<Samples> all(plan_.variants.size());
    std::vector<int> turns(plan_.variants.size(), 1);
    for (bool is_over = false, first = true; !is_over; first = false) {
      is_over = true;
      for (size_t i = 0; i < plan_.variants.size(); ++i) {
        if (!can(plan_.variants[i], order.operation)) continue;
        order.variant = static_cast<int>(i);
        order.iterations = turns[i];
        Samples samples;
        take_turn(order, first ? samples : all[i]);
        if (first) {
          // The first turn warms up, and determines the number of iterations of later turns.
          turns[i] = std::clamp(static_cast<int>(kTurnSeconds / samples.total), 1, 1000);
        }
        is_over &= all[i].total >= plan_.min_seconds && all[i].seconds.size() >= kLeastIterations;
      }
    }
    std::vector<NetRow> rows;
    for (size_t i = 0; i < plan_.variants.size(); ++i) {
      if (!can(plan_.variants[i], order.operation)) continue;
      // An iteration of `messages` sends many messages.
      const double each = order.operation == NetOperation::messages ? kBurst : 1;
      rows.push_back(to_row(plan_.variants[i], order, std::move(all[i]), each));
      NetRow& row = rows.back();
      row.bandwidth = static_cast<double>(order.bytes) / (1e3 * row.p50_microseconds);
    }
    return rows;
  }

  NetRow measure_death(const NetVariant& variant) {
    Samples samples;
    for (int i = 0; i < kDeaths; ++i) {
      Other other([&](int control) {
        NetMemory memory(kBurstBytes);
        const auto side = make_side(variant, true, control, secret_, memory);
        side->serve_round_trip(1);
        ::pause();
      });
      const auto side = make_side(variant, false, other.control(), secret_, memory_);
      side->begin_round_trip(1);
      const double cpu = processor_seconds();
      const Stopwatch watch;
      other.kill();
      side->wait_for_end();
      samples.seconds.push_back(watch.seconds());
      samples.cpu += processor_seconds() - cpu;
    }
    return to_row(variant, {.operation = NetOperation::death}, std::move(samples), 1);
  }

  static NetRow to_row(const NetVariant& variant, const Order& order, Samples samples,
                       double each) {
    std::ranges::sort(samples.seconds);
    const auto microseconds = [&](double share) {
      return 1e6 * percentile(samples.seconds, share) / each;
    };
    const Spread spread = spread_of(samples.seconds);
    const auto count = static_cast<double>(samples.seconds.size());
    return {.operation = std::string(name(order.operation)),
            .carrier = std::string(name(variant.carrier)),
            .protection = std::string(net::name(variant.protection)),
            .streams = variant.streams,
            .bytes = order.bytes,
            .iterations = static_cast<int64_t>(count),
            .min_microseconds = microseconds(0),
            .p50_microseconds = microseconds(0.5),
            .p99_microseconds = microseconds(0.99),
            .low_microseconds = 1e6 * spread.low / each,
            .high_microseconds = 1e6 * spread.high / each,
            .cpu_microseconds = 1e6 * samples.cpu / count / each};
  }

  static void compare(std::vector<NetRow>& rows) {
    for (NetRow& row : rows) {
      for (const NetRow& bare : rows) {
        if (bare.carrier == "bare" && bare.operation == row.operation && bare.bytes == row.bytes &&
            bare.streams == row.streams) {
          row.times_bare = row.p50_microseconds / bare.p50_microseconds;
        }
      }
    }
  }

  const NetPlan& plan_;
  const net::Secret secret_;
  const size_t most_bytes_;
  NetMemory memory_{most_bytes_};
  std::optional<Other> other_;  // declared before the sides, which are destroyed first
  std::vector<std::unique_ptr<NetSide>> sides_;
};

}  // namespace

std::vector<NetRow> measure_net(const NetPlan& plan) {
  return Measurement(plan).run();
}

}  // namespace troika::cli::bench
