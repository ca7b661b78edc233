// fuzz_messages BACKEND [--rounds=N] [--seconds=S] [--seed=N]: every rank sends and receives
// messages of random sizes, tags and peers, in a schedule that all ranks draw from the seed, with a
// reduction among them now and then. Every byte is checked. Ends with 1 where a rank's memory has
// grown by more than 256 MiB after the first tenth of its rounds. BACKEND `auto` takes that of the
// launcher.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string_view>
#include <vector>

#include "tests/support/process_usage.h"
#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/comm/world.h"

namespace troika {
namespace {

constexpr int64_t kMemoryBound = int64_t{256} << 20;
constexpr uint64_t kTags = 3;

struct Message {
  int from, to, tag;
  int64_t bytes;
  uint8_t fill;
};

// Mostly small, some of megabytes.
int64_t draw_bytes(Random& random) {
  return static_cast<int64_t>(
      random.below(uint64_t{1} << random.below(random.below(16) == 0 ? 23 : 14)));
}

int64_t held_bytes() {
  const auto usage = test::process_usage();
  return usage.resident_bytes + usage.shared_bytes;
}

std::vector<Message> draw_messages(int ranks, Random& random) {
  std::vector<Message> messages(1 + random.below(40));
  for (auto& message : messages) {
    message.from = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
    message.to =
        (message.from + 1 + static_cast<int>(random.below(static_cast<uint64_t>(ranks) - 1))) %
        ranks;
    message.tag = static_cast<int>(random.below(kTags));
    message.bytes = draw_bytes(random);
    message.fill = static_cast<uint8_t>(random.below(256));
  }
  return messages;
}

void exchange(const comm::Group& group, const std::vector<Message>& messages, Random own) {
  struct Pending {
    comm::Work work;
    at::Tensor buffer;
    const Message* message;
  };
  std::vector<Pending> pending;
  const auto finish = [&](size_t i) {
    const Pending done = std::move(pending[i]);
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    done.work.wait();
    if (done.message->to != group.rank()) return;
    TROIKA_CHECK(done.buffer.eq(done.message->fill).all().item<bool>(),
                 "a message arrives as it was sent");
  };
  for (const auto& message : messages) {
    if (message.from == group.rank()) {
      const auto buffer = at::full({message.bytes}, message.fill, at::kByte);
      pending.push_back({group.send(buffer, message.to, message.tag), buffer, &message});
    } else if (message.to == group.rank()) {
      const auto buffer = at::empty({message.bytes}, at::kByte);
      pending.push_back({group.receive(buffer, message.from, message.tag), buffer, &message});
    }
  }
  // In an order of this rank's own.
  while (!pending.empty()) finish(own.below(pending.size()));
}

int main(int argc, char** argv) {
  int64_t rounds = 50;
  uint64_t seed = 1;
  double seconds = 0;
  for (int i = 2; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string value(argument.substr(argument.find('=') + 1));
    if (argument.starts_with("--rounds=")) rounds = std::stoll(value);
    if (argument.starts_with("--seconds=")) seconds = std::stod(value);
    if (argument.starts_with("--seed=")) seed = std::stoull(value);
  }
  comm::WorldOptions options;
  options.backend = argv[1];
  const auto group = comm::world(options);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto goes_on = [&](int64_t round) {
    if (seconds == 0) return round < rounds;
    const bool more = std::chrono::steady_clock::now() < end;
    return group.broadcast_text(more ? "go on" : "stop") == "go on";
  };

  int64_t base = 0, done = 0;
  while (goes_on(done)) {
    Random random(mix(seed, static_cast<uint64_t>(done)));
    exchange(group, draw_messages(group.size(), random),
             Random(mix(seed, static_cast<uint64_t>(group.rank()))));
    if (random.below(4) == 0) {
      const auto sum = at::full({1 + static_cast<int64_t>(random.below(100'000))}, 1.0, at::kFloat);
      group.all_reduce(sum);
      TROIKA_CHECK(sum.eq(group.size()).all().item<bool>(), "a reduction among messages is right");
    }
    if (++done <= std::max<int64_t>(10, rounds / 10)) base = held_bytes();
    if (held_bytes() > base + kMemoryBound) {
      std::fprintf(stderr, "fault: memory; got %ld MiB, expected at most %ld MiB\n",
                   static_cast<long>(held_bytes() >> 20),
                   static_cast<long>((base + kMemoryBound) >> 20));
      return 1;
    }
  }
  if (group.rank() == 0)
    fmt::print("{} rounds, seed {}, {} MiB held: no fault\n", done, seed, held_bytes() >> 20);
  return 0;
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) try {
  return troika::main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "fault: %s\n", error.what());
  return 1;
}
