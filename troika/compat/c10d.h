// c10d as this project uses it: a store and Gloo's process group, whose names and bases moved
// between LibTorch 1.13 and 2.x. Include only where Gloo is built in.
#pragma once

#include <torch/version.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <string>

namespace troika::compat {

using GlooProcessGroup = c10d::ProcessGroupGloo;
// c10d::ProcessGroup::Work in 1.12, c10d::Work from 1.13 on.
using GlooWork = c10::intrusive_ptr<c10d::Work>;

// A store served by the process that passes `is_server`, on `port` (0: any free one).
inline c10::intrusive_ptr<c10d::TCPStore> make_store(const std::string& host, int port,
                                                     bool is_server,
                                                     std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace troika::compat
