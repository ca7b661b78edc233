// One of the two ranks of bench/messages: measures the time to send data from one process to
// another, over each back end, through plain shared memory and sockets, and by the MPI library.
//
// messages_rank ROUNDS, started by mpirun. Rank 0 prints JSON: for each size and method, the
// microseconds of one direction in each round, which is half of the mean round trip; for memcpy,
// the microseconds of one copy. Each message is written again before it is sent or copied, as a
// stage computes what it sends; otherwise a back end that copies once would read the old bytes from
// the receiver's own cache. The time of writing is measured in each round and subtracted.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <mpi.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/discovery/port.h"
#include "troika/comm/edge.h"
#include "troika/comm/world/world.h"

namespace {

using troika::comm::Group;

constexpr double kSecondsEachRound = 0.1;
constexpr size_t kMostBytes = size_t{16} << 20;

[[noreturn]] void fail(const std::string& what) {
  throw troika::Error("bench", troika::ErrorKind::failure,
                      {.what = what, .got = std::strerror(errno)});
}

struct Way {
  std::string name;
  std::function<void(const at::Tensor&)> send, receive;  // of bytes, to and from the other rank
};

// Has a page for each direction with the number of messages, followed by the bytes of one message.
class SharedPages {
 public:
  explicit SharedPages(const Group& group) : mine_(group.rank()) {
    const int fd = ::memfd_create("bench", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, 2 * kStride) != 0) fail("no shared memory");
    const auto path =
        group.broadcast_text("/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd));
    const int shared = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (shared < 0) fail("cannot open " + path);
    base_ = static_cast<char*>(
        ::mmap(nullptr, 2 * kStride, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, shared, 0));
    if (base_ == MAP_FAILED) fail("cannot map shared memory");
    group.barrier();
  }
  void send(const at::Tensor& tensor) {
    std::memcpy(data(mine_), tensor.data_ptr(), tensor.nbytes());
    count(mine_).store(++sent_, std::memory_order_release);
  }
  void receive(const at::Tensor& tensor) {
    ++received_;
    while (count(1 - mine_).load(std::memory_order_acquire) < received_) __builtin_ia32_pause();
    std::memcpy(tensor.data_ptr(), data(1 - mine_), tensor.nbytes());
  }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kStride = kPage + kMostBytes;
  std::atomic<uint64_t>& count(int rank) {
    return *reinterpret_cast<std::atomic<uint64_t>*>(base_ + static_cast<size_t>(rank) * kStride);
  }
  char* data(int rank) { return base_ + static_cast<size_t>(rank) * kStride + kPage; }

  const int mine_;
  char* base_ = nullptr;
  uint64_t sent_ = 0, received_ = 0;
};

// The receiver polls, because waking it would take longer.
class BareSocket {
 public:
  explicit BareSocket(const Group& group) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    const int own = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (group.rank() == 0 && (::bind(own, generic, length) != 0 || ::listen(own, 1) != 0 ||
                              ::getsockname(own, generic, &length) != 0)) {
      fail("cannot listen");
    }
    const auto port = group.broadcast_text(std::to_string(ntohs(address.sin_port)));
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
    if (group.rank() == 1 && ::connect(own, generic, length) != 0) fail("cannot connect");
    socket_ = group.rank() == 0 ? ::accept(own, nullptr, nullptr) : own;
    const int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  void send(const at::Tensor& tensor) const {
    const auto* data = static_cast<const char*>(tensor.data_ptr());
    for (size_t done = 0; done < tensor.nbytes();) {
      done += moved(::send(socket_, data + done, tensor.nbytes() - done, MSG_NOSIGNAL));
    }
  }
  void receive(const at::Tensor& tensor) const {
    auto* data = static_cast<char*>(tensor.data_ptr());
    for (size_t done = 0; done < tensor.nbytes();) {
      const ssize_t bytes = ::recv(socket_, data + done, tensor.nbytes() - done, MSG_DONTWAIT);
      if (bytes < 0 && errno == EAGAIN) continue;
      done += moved(bytes);
    }
  }

 private:
  static size_t moved(ssize_t bytes) {
    if (bytes <= 0) fail("the socket ended");
    return static_cast<size_t>(bytes);
  }
  int socket_ = -1;
};

void add_group(std::vector<Way>& routes, const std::string& name, const Group& group) {
  const int other = 1 - group.rank();
  routes.push_back({name + " message",
                    [=](const at::Tensor& tensor) { group.send(tensor, other).wait(); },
                    [=](const at::Tensor& tensor) { group.receive(tensor, other).wait(); }});
  const auto to = group.edge_to(other);
  const auto from = group.edge_from(other);
  routes.push_back({name + " edge", [=](const at::Tensor& tensor) { to.send(tensor).wait(); },
                    [=](const at::Tensor&) { from.receive(); }});
}

void add_mpi(std::vector<Way>& routes, int other) {
  routes.push_back({"MPI_Send",
                    [=](const at::Tensor& tensor) {
                      MPI_Send(tensor.data_ptr(), static_cast<int>(tensor.nbytes()), MPI_BYTE,
                               other, 0, MPI_COMM_WORLD);
                    },
                    [=](const at::Tensor& tensor) {
                      MPI_Recv(tensor.data_ptr(), static_cast<int>(tensor.nbytes()), MPI_BYTE,
                               other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                    }});
}

void write(const at::Tensor& message, int64_t value) {
  std::memset(message.data_ptr(), static_cast<int>(value), message.nbytes());
  asm volatile("" ::: "memory");
}

// Returns the microseconds of one direction.
double time_trips(const Group& world, const Way& way, const at::Tensor& out, const at::Tensor& in,
                  int64_t trips) {
  const auto send = [&](int64_t i) {
    write(out, i);
    way.send(out);
  };
  world.barrier();
  const troika::Stopwatch watch;
  for (int64_t i = 0; i < trips; ++i) {
    if (world.rank() == 0) send(i);
    way.receive(in);
    if (world.rank() == 1) send(i);
  }
  return watch.seconds() * 1e6 / static_cast<double>(2 * trips);
}

// Returns the time of one write, and of one memcpy, in microseconds. Rank 0 measures while the
// other rank waits.
std::pair<double, double> time_copies(const Group& world, const at::Tensor& out,
                                      const at::Tensor& in, int64_t copies) {
  const auto time = [&](bool copies_too) {
    const troika::Stopwatch watch;
    for (int64_t i = 0; world.rank() == 0 && i < copies; ++i) {
      write(out, i);
      if (copies_too) std::memcpy(in.data_ptr(), out.data_ptr(), out.nbytes());
      asm volatile("" ::: "memory");
    }
    return watch.seconds() * 1e6 / static_cast<double>(copies);
  };
  const double writing = time(false);
  return {writing, time(true) - writing};
}

int64_t trips_a_round(const Group& world, double microseconds) {
  return std::stoll(world.broadcast_text(
      std::to_string(1 + static_cast<int64_t>(kSecondsEachRound * 1e6 / 2 / microseconds))));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const int rounds = std::atoi(argv[1]);
  at::set_num_threads(1);
  auto environment = troika::cluster::discover();
  const auto shm = troika::comm::world(environment, {.backend = "shm"});
  const auto another = [&](const std::string& backend) {
    // A world's port is in use as long as the world exists.
    environment.master_port = std::stoi(shm.broadcast_text(
        shm.rank() == 0 ? std::to_string(troika::cluster::free_port()) : "", 0, "port"));
    return troika::comm::world(environment, {.backend = backend});
  };
  const auto tcp = another("tcp");
  const auto mpi = another("mpi");
  SharedPages pages(shm);
  const BareSocket socket(shm);
  std::vector<Way> routes;
  routes.push_back({"bare memory", [&](const at::Tensor& tensor) { pages.send(tensor); },
                    [&](const at::Tensor& tensor) { pages.receive(tensor); }});
  add_group(routes, "shm", shm);
  add_mpi(routes, 1 - shm.rank());
  add_group(routes, "mpi", mpi);
  routes.push_back({"bare socket", [&](const at::Tensor& tensor) { socket.send(tensor); },
                    [&](const at::Tensor& tensor) { socket.receive(tensor); }});
  add_group(routes, "tcp", tcp);

  nlohmann::json result;
  for (const int64_t bytes :
       {int64_t{4} << 10, int64_t{64} << 10, int64_t{1} << 20, int64_t{16} << 20}) {
    const auto out = at::ones({bytes}, at::kByte), in = at::zeros({bytes}, at::kByte);
    std::vector<int64_t> trips;
    for (const auto& way : routes) {
      time_trips(shm, way, out, in, 3);
      trips.push_back(trips_a_round(shm, time_trips(shm, way, out, in, 10)));
    }
    const int64_t copies = trips_a_round(shm, std::max(0.01, time_copies(shm, out, in, 10).second));
    auto& times = result[std::to_string(bytes)];
    for (int round = 0; round < rounds; ++round) {
      shm.barrier();
      const auto [writing, copying] = time_copies(shm, out, in, copies);
      times["memcpy"].push_back(copying);
      for (size_t i = 0; i < routes.size(); ++i) {
        times[routes[i].name].push_back(time_trips(shm, routes[i], out, in, trips[i]) - writing);
      }
    }
  }
  shm.barrier();
  if (shm.rank() == 0) std::cout << result.dump() << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return troika::exit_code(error);
}
