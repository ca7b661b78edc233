#include "tests/pretend_device/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include "tests/pretend_device/streams.h"
#include "troika/compat/torch.h"

namespace troika::pretend {

namespace {

constexpr size_t kDeviceBytes = size_t{4} << 30;
constexpr size_t kAllBytes = kDeviceBytes * kDevices;
constexpr size_t kBlockMultiple = 512;

struct Noted {
  Access access;
  int stream = 0;
  uint64_t time = 0;
  std::string work;
};

struct Block {
  size_t bytes = 0;
  int stream = 0;                // allocated on
  std::vector<Mark> users = {};  // other streams' work that the next owner must not overtake
  std::vector<int> used_on = {};
  std::vector<Noted> noted = {};
};

char* reserve(int rights) {
  void* memory = ::mmap(nullptr, kAllBytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        /*fd=*/-1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("pretend device: no address space");
  return static_cast<char*>(memory);
}

struct Spaces;
Spaces* g_spaces = nullptr;
struct sigaction g_before;

struct Spaces {
  Spaces() : host(reserve(PROT_NONE)), device(reserve(PROT_READ | PROT_WRITE)) {}

  char* const host;    // where the host's pointers lead
  char* const device;  // where operators work
  std::map<const char*, Block> blocks = {};
  std::map<std::pair<int, size_t>, std::vector<const char*>> released = {};
  size_t used[kDevices] = {};
  size_t allocated[kDevices] = {};
};

// Prints the cause before the process is killed by the signal.
void on_fault(int, siginfo_t* info, void*) {
  if (g_spaces != nullptr && is_device_address(info->si_addr)) {
    constexpr char kCause[] =
        "pretend device: the host touched device memory, which only operators may\n";
    static_cast<void>(!::write(STDERR_FILENO, kCause, sizeof(kCause) - 1));
  }
  ::sigaction(SIGSEGV, &g_before, nullptr);  // the access is made again, and ends the process
}

Spaces& spaces() {
  static Spaces* const result = [] {
    g_spaces = new Spaces;
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &g_before);
    return g_spaces;
  }();
  return *result;
}

// Returns the block that contains an address.
std::map<const char*, Block>::iterator find_block(const void* address) {
  auto& blocks = spaces().blocks;
  auto next = blocks.upper_bound(static_cast<const char*>(address));
  if (next == blocks.begin()) throw std::logic_error("pretend device: no such memory");
  --next;
  return next;
}

void fill_with_nan(const char* address, size_t bytes, int stream) {
  enqueue(stream, "allocation", {{address, address + bytes, true}},
          [at = in_operator(address), bytes] { std::memset(at, 0xff, bytes); });
}

void* allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const int device = current_device();
  const int stream = current_stream(device);
  const std::lock_guard lock(device_mutex());
  auto& all = spaces();
  const size_t whole = (bytes + kBlockMultiple - 1) / kBlockMultiple * kBlockMultiple;
  auto& released = all.released[{stream, whole}];
  const char* address = nullptr;
  for (auto at = released.rbegin(); at != released.rend() && address == nullptr; ++at) {
    const auto& users = all.blocks.at(*at).users;
    if (!std::all_of(users.begin(), users.end(), is_done_already)) continue;
    for (const Mark& user : users) wait_on_host(user);  // has ended: the host knows that now
    address = *at;
    released.erase(std::next(at).base());
    break;
  }
  if (address == nullptr) {
    if (all.used[device] + whole > kDeviceBytes) {
      throw std::runtime_error("pretend device: out of memory");
    }
    address = all.host + static_cast<size_t>(device) * kDeviceBytes + all.used[device];
    all.used[device] += whole;
    all.blocks[address] = {.bytes = whole, .stream = stream};
  }
  Block& block = all.blocks.at(address);
  block.users.clear();
  block.used_on.clear();
  all.allocated[device] += whole;
  fill_with_nan(address, whole, stream);
  return const_cast<char*>(address);
}

void release(void* address) {
  if (address == nullptr) return;
  const std::lock_guard lock(device_mutex());
  auto& all = spaces();
  const auto place = static_cast<const char*>(address);
  Block& block = all.blocks.at(place);
  for (const int stream : block.used_on) block.users.push_back(mark(stream));
  all.allocated[block.stream / kStreamsEach] -= block.bytes;
  all.released[{block.stream, block.bytes}].push_back(place);
}

struct DeviceAllocator : c10::Allocator {
#if TROIKA_TORCH_VERSION >= 200
  c10::DataPtr allocate(size_t bytes) override {
    return make(bytes);
  }
  void copy_data(void*, const void*, size_t) const override {
    throw std::logic_error("pretend device: copy_data");
  }
#else
  c10::DataPtr allocate(size_t bytes) const override {
    return make(bytes);
  }
#endif
  static c10::DataPtr make(size_t bytes) {
    void* const data = pretend::allocate(bytes);
    return {data, data, release,
            c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device()))};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return release;
  }
};

}  // namespace

char* in_operator(const void* address) {
  auto& all = spaces();
  return all.device + (static_cast<const char*>(address) - all.host);
}

bool is_device_address(const void* address) {
  const auto& all = spaces();
  const auto place = static_cast<const char*>(address);
  return place >= all.host && place < all.host + kAllBytes;
}

c10::Allocator& allocator() {
  static auto* const result = new DeviceAllocator;
  return *result;
}

void use_on(const void* address, int stream) {
  if (address == nullptr) return;
  const std::lock_guard lock(device_mutex());
  find_block(address)->second.used_on.push_back(stream);
}

void note_accesses(const std::vector<Access>& accesses, int stream, const Clock& now,
                   const std::string& work) {
  for (const Access& access : accesses) {
    if (access.begin == access.end) continue;
    auto& noted = find_block(access.begin)->second.noted;
    for (const Noted& before : noted) {
      const bool overlaps = before.access.begin < access.end && access.begin < before.access.end;
      const bool is_ordered = before.stream == stream || before.time <= now[before.stream];
      if (!overlaps || is_ordered || (!access.writes && !before.access.writes)) continue;
      throw std::logic_error("pretend device: nothing orders " + work + " on stream " +
                             std::to_string(stream) + ", which " +
                             (access.writes ? "writes" : "reads") + ", after " + before.work +
                             " on stream " + std::to_string(before.stream) + ", which " +
                             (before.access.writes ? "writes" : "reads") + " the same memory");
    }
    // Removes earlier accesses that this one covers and is ordered after.
    std::erase_if(noted, [&](const Noted& before) {
      return access.begin <= before.access.begin && before.access.end <= access.end &&
             (access.writes || (!before.access.writes && before.stream == stream));
    });
    noted.push_back({access, stream, now[stream], work});
  }
}

size_t allocated_bytes(int device) {
  const std::lock_guard lock(device_mutex());
  return spaces().allocated[device];
}

}  // namespace troika::pretend
