// Ranks of back end shm that are all in one process.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "troika/comm/local/local.h"
#include "troika/comm/messages/group_impl.h"
#include "troika/comm/shm/inbox.h"
#include "troika/comm/shm/outbox.h"

namespace troika::comm::shm {

inline constexpr size_t kMiB = size_t{1} << 20;

struct SharedMemory {
  size_t segments = 0;
  size_t resident = 0;  // bytes
};

// Returns the shared memory of this process, as the system reports it for its descriptors.
inline SharedMemory shared_memory() {
  SharedMemory found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with("/memfd:troika")) continue;
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) != 0) continue;
    found.segments += 1;
    found.resident += static_cast<size_t>(status.st_blocks) * 512;
  }
  return found;
}

class Ranks {
 public:
  explicit Ranks(int size, std::chrono::microseconds patience = Outbox::kPatience)
      : worlds_(local::make(size)) {
    std::vector<int> numbers;
    for (int r = 0; r < size; ++r) numbers.push_back(r);
    const auto directory = Segment::create(Arena::directory_bytes(size));
    const auto board = Segment::create(Board::bytes_for(size));
    const auto present = Segment::create(Presence::bytes_for(size));
    for (int r = 0; r < size; ++r) {
      const auto& lifeline = worlds_[static_cast<size_t>(r)]->lifeline();
      arenas_.push_back(std::make_shared<Arena>(again(directory), r, size, lifeline));
      auto presence = std::make_shared<Presence>(again(present), r, numbers, lifeline);
      boards_.push_back(std::make_shared<Board>(again(board), r, size, 0, std::move(presence)));
      outboxes_.push_back(std::make_unique<Outbox>(boards_.back(), arenas_.back(), patience));
      inboxes_.push_back(std::make_unique<Inbox>(boards_.back(), arenas_.back(), numbers));
    }
  }
  ~Ranks() {
    for (const auto& world : worlds_) world->lifeline()->leave();
  }

  const std::shared_ptr<Arena>& arena(int rank) { return arenas_[static_cast<size_t>(rank)]; }
  Board& board(int rank) { return *boards_[static_cast<size_t>(rank)]; }
  Outbox& outbox(int rank) { return *outboxes_[static_cast<size_t>(rank)]; }
  Inbox& inbox(int rank) { return *inboxes_[static_cast<size_t>(rank)]; }

  Outbox::Receipt send(int from, int to, uint32_t tag, size_t bytes, bool wants_receipt = false) {
    const auto data = content(bytes);
    const std::string_view payload(data.data(), bytes);
    return outbox(from).send(to, {.tag = tag, .payload = payload, .wants_receipt = wants_receipt});
  }
  // Blocks until the message is on the board. The sender may still be writing it then.
  Envelope& await(int to, int from, uint32_t tag) {
    return inbox(to).await(inbox(to).expect(from, tag), soon(), name, [] { return false; });
  }
  // Receives the message. Throws the errors of Inbox; the message counts as received then, too.
  void copy(int to, int from, Envelope& message, size_t bytes) {
    std::vector<char> data(bytes);
    try {
      ASSERT_EQ(Inbox::length_of(message, bytes, name), bytes);
      if (message.is_cell) {
        std::memcpy(data.data(), message.data(), bytes);
      } else {
        inbox(to).copy_out(from, message, bytes, data.data(), soon(), name);
      }
    } catch (...) {
      inbox(to).take(from, message);
      throw;
    }
    inbox(to).take(from, message);
    ASSERT_TRUE(data == content(bytes));
  }
  void receive(int to, int from, uint32_t tag, size_t bytes) {
    copy(to, from, await(to, from, tag), bytes);
  }

 private:
  static std::string name() { return "the sender"; }
  static Deadline soon() { return Deadline::after(std::chrono::minutes(1)); }
  // Returns bytes that depend on the length and repeat after 251 bytes.
  static std::vector<char> content(size_t bytes) {
    std::vector<char> data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i % 251 + bytes);
    return data;
  }
  static Segment again(const Segment& segment) {
    return Segment::open(::getpid(), segment.fd(), segment.bytes());
  }

  std::vector<std::shared_ptr<GroupImpl>> worlds_;
  std::vector<std::shared_ptr<Arena>> arenas_;
  std::vector<std::shared_ptr<Board>> boards_;
  std::vector<std::unique_ptr<Outbox>> outboxes_;
  std::vector<std::unique_ptr<Inbox>> inboxes_;
};

}  // namespace troika::comm::shm
