// c10d's store, through which its process groups find each other.
#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <string>

namespace troika::compat {

// A store served by the process that passes `is_server`, on `port` (0: any free one).
inline c10::intrusive_ptr<c10d::TCPStore> make_store(const std::string& host, int port,
                                                     bool is_server,
                                                     std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout;
  // The default of LibTorch 2.4 and later, though many are built without it.
  const auto without_libuv = [](auto& of) {
    if constexpr (requires { of.useLibUV; }) of.useLibUV = false;
  };
  without_libuv(options);
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace troika::compat
