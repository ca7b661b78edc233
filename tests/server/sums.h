// Summation servers and their workers on a simulated network.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/net/simulated_network.h"
#include "troika/server/summation.h"

namespace troika::server {

// Workers w0, w1, ... with a server each, s0, s1, ..., after those of spare machines.
class Sums {
 public:
  Sums(int workers, int spares, size_t credit = 0, uint64_t seed = 1,
       net::SimulatedLinks links = {}, SummationCoding coding = {}, size_t lead = 0)
      : network_(seed, links) {
    std::vector<std::string> names;
    for (int i = 0; i < workers + spares; ++i) {
      names.push_back(fmt::format("s{}", i));
      servers_.push_back(std::make_unique<SummationServer>(network_.add(names.back())));
    }
    const std::vector<size_t> leads(lead > 0 ? names.size() : 0, lead);
    for (int i = 0; i < workers; ++i) {
      const auto name = fmt::format("w{}", i);
      endpoints_.push_back(&network_.add(name));
      for (const auto& server : names) network_.connect(name, server);
      clients_.push_back(std::make_unique<SummationClient>(
          *endpoints_.back(), SummationClientOptions{.rank = static_cast<uint32_t>(i),
                                                     .workers = static_cast<uint32_t>(workers),
                                                     .servers = names,
                                                     .credit_bytes = credit,
                                                     .lead_bytes = leads,
                                                     .coding = coding}));
    }
  }

  SummationClient& client(size_t i) { return *clients_[i]; }
  SummationServer& server(size_t i) { return *servers_[i]; }
  net::SimulatedNetwork& network() { return network_; }
  void end_client(size_t i) { clients_[i].reset(); }
  void wait(std::chrono::milliseconds at_most = std::chrono::milliseconds(60'000)) {
    for (auto& client : clients_) {
      if (client) client->wait(Deadline::after(at_most));
    }
  }
  // Returns the error of a worker's wait.
  std::string error_of(size_t i,
                       std::chrono::milliseconds at_most = std::chrono::milliseconds(60'000)) {
    try {
      clients_[i]->wait(Deadline::after(at_most));
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

 private:
  net::SimulatedNetwork network_;
  std::vector<std::unique_ptr<SummationServer>> servers_;
  std::vector<net::Endpoint*> endpoints_;
  std::vector<std::unique_ptr<SummationClient>> clients_;
};

template <typename T>
std::span<char> bytes_of(std::vector<T>& values, size_t begin, size_t count) {
  return {reinterpret_cast<char*>(values.data() + begin), count * sizeof(T)};
}

// Numbers whose sum depends on the order.
template <typename T>
std::vector<T> numbers(size_t worker, size_t count, uint64_t round) {
  Random random(1 + worker + 100 * round);
  std::vector<T> values(count);
  for (auto& value : values) {
    value = static_cast<T>((static_cast<double>(random() % 2000) - 1000) / 7);
  }
  return values;
}

}  // namespace troika::server
