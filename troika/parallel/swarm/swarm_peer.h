// A swarm::Peer of either type of numbers, with tensors as values.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/swarm/peer.h"

namespace troika::parallel {

// The callbacks of swarm::PeerCallbacks, with tensors. In place of `due`, ask SwarmPeer::is_due().
struct SwarmCallbacks {
  std::function<void(const swarm::SwarmStep& step, const at::Tensor& mean)> averaged;
  swarm::StateTransfer::Take state;
  std::function<void(const std::string& state)> load;
};

// Construct, call and destroy it under Endpoint's rules for callbacks, and begin with connections
// after its construction. The functions are those of swarm::Peer.
class SwarmPeer {
 public:
  virtual ~SwarmPeer() = default;
  SwarmPeer() = default;
  SwarmPeer(const SwarmPeer&) = delete;
  SwarmPeer& operator=(const SwarmPeer&) = delete;

  virtual void report(int64_t samples) = 0;
  virtual void set_paused(bool is_paused) = 0;
  // To the present epoch; `values` is copied.
  virtual void contribute(const at::Tensor& values, double weight) = 0;
  virtual void use_token(const std::string& token) = 0;
  virtual swarm::StateVersion version() const = 0;
  virtual bool is_discovering() const = 0;
  virtual bool is_downloading() const = 0;
  virtual bool is_due() const = 0;
  virtual bool is_averaging() const = 0;
  virtual bool is_connected(const std::string& peer) const = 0;
  virtual std::vector<swarm::PeerProgress> peers() const = 0;
  virtual swarm::Directory& directory() = 0;
};

// How values travel.
struct SwarmValues {
  bool is_double = false;      // float64, otherwise float32
  std::string codec = "none";  // a name of comm::CodecOptions
  size_t exact = 0;            // numbers at the beginning that are not compressed
};

// `options` has no packing. The references must outlive the peer.
std::unique_ptr<SwarmPeer> make_swarm_peer(const SwarmValues& values, net::Endpoint& endpoint,
                                           const swarm::Identity& identity,
                                           const swarm::PeerOptions<double>& options,
                                           SwarmCallbacks callbacks);

}  // namespace troika::parallel
