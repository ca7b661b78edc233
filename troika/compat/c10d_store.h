// c10d's store, through which its process groups rendezvous.
#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <string>

namespace troika::compat {

// Makes a store that the process with `is_server` serves, on `port` (0: any free port).
inline c10::intrusive_ptr<c10d::TCPStore> make_store(const std::string& host, int port,
                                                     bool is_server,
                                                     std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout;
  // libuv is the default of LibTorch 2.4 and later, but many builds lack it.
  const auto without_libuv = [](auto& of) {
    if constexpr (requires { of.useLibUV; }) of.useLibUV = false;
  };
  without_libuv(options);
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace troika::compat
