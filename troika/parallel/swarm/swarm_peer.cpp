#include "troika/parallel/swarm/swarm_peer.h"

#include <utility>

#include "troika/compat/torch.h"
#include "troika/parallel/encoded_numbers.h"

namespace troika::parallel {

namespace {

template <typename Number>
class PeerOf : public SwarmPeer {
 public:
  PeerOf(net::Endpoint& endpoint, const swarm::Identity& identity,
         const swarm::PeerOptions<Number>& options, SwarmCallbacks callbacks)
      : peer_(endpoint, identity, options,
              {.due = [](int64_t) {},
               .averaged = [averaged = std::move(callbacks.averaged)](
                               const swarm::SwarmStep& step,
                               const Values& values) { averaged(step, tensor_of(values)); },
               .state = std::move(callbacks.state),
               .load = [load = std::move(callbacks.load)](
                           int64_t, const std::string& state) { load(state); }}) {}

  void report(int64_t samples) override { peer_.report(samples); }
  void set_paused(bool is_paused) override { peer_.set_paused(is_paused); }
  void contribute(const at::Tensor& values, double weight) override {
    const auto numbers = values.contiguous();
    const auto* first = numbers.data_ptr<Number>();
    peer_.contribute(peer_.epoch(),
                     std::make_shared<std::vector<Number>>(first, first + numbers.numel()), weight);
  }
  void use_token(const std::string& token) override { peer_.use_token(token); }
  swarm::StateVersion version() const override {
    return {.epoch = peer_.epoch(),
            .history = peer_.history(),
            .is_partial = peer_.peers().front().is_partial};
  }
  bool is_discovering() const override { return peer_.is_discovering(); }
  bool is_downloading() const override { return peer_.is_downloading(); }
  bool is_due() const override { return peer_.is_due(); }
  bool is_averaging() const override { return peer_.is_averaging(); }
  bool is_connected(const std::string& peer) const override { return peer_.is_connected(peer); }
  std::vector<swarm::PeerProgress> peers() const override { return peer_.peers(); }
  swarm::Directory& directory() override { return peer_.directory(); }

 private:
  using Values = typename swarm::Peer<Number>::Values;

  // Shares memory with the values.
  static at::Tensor tensor_of(const Values& values) {
    constexpr auto kType = std::is_same_v<Number, double> ? at::kDouble : at::kFloat;
    return at::from_blob(
        values->data(), {static_cast<int64_t>(values->size())}, [values](void*) {},
        at::TensorOptions(kType));
  }

  swarm::Peer<Number> peer_;
};

// Whole blocks of the codec are compressed, or not, so that the same blocks are in all groups.
template <typename Number>
net::Packing<Number> packing_of(const SwarmValues& values) {
  if (values.codec == "none") return {};
  const comm::CodecOptions codec{.name = values.codec};
  const auto block = static_cast<size_t>(codec.block);
  return encoded_packing<Number>(comm::make_encoding(codec),
                                 (values.exact + block - 1) / block * block, block);
}

}  // namespace

std::unique_ptr<SwarmPeer> make_swarm_peer(const SwarmValues& values, net::Endpoint& endpoint,
                                           const swarm::Identity& identity,
                                           const swarm::PeerOptions<double>& options,
                                           SwarmCallbacks callbacks) {
  if (values.is_double) {
    auto whole = options;
    whole.packing = packing_of<double>(values);
    whole.packing_name = values.codec;
    return std::make_unique<PeerOf<double>>(endpoint, identity, whole, std::move(callbacks));
  }
  return std::make_unique<PeerOf<float>>(
      endpoint, identity,
      swarm::PeerOptions<float>{.run = options.run,
                                .schema = options.schema,
                                .target_batch = options.target_batch,
                                .packing = packing_of<float>(values),
                                .packing_name = values.codec,
                                .aggregation = options.aggregation,
                                .group_size = options.group_size,
                                .overlaps = options.overlaps,
                                .authority = options.authority,
                                .token = options.token,
                                .mode = options.mode,
                                .bandwidth = options.bandwidth,
                                .least_part = options.least_part,
                                .version = options.version,
                                .discovery_time = options.discovery_time,
                                .matchmaking_time = options.matchmaking_time,
                                .averaging_time = options.averaging_time,
                                .sender_timeout = options.sender_timeout,
                                .download_time = options.download_time,
                                .most_state = options.most_state,
                                .seed = options.seed,
                                .kinds = options.kinds,
                                .reader = options.reader},
      std::move(callbacks));
}

}  // namespace troika::parallel
