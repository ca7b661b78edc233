// DiLoCo over the peers of a swarm: docs/swarm.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "troika/base/trace.h"
#include "troika/parallel/diloco/outer_fragments.h"
#include "troika/parallel/swarm/swarm_store.h"

namespace troika::parallel {

struct LocalUpdatesOptions {
  OuterOptions outer = {};
  Trace* trace = nullptr;  // records a span of communication for each time that finish() waits
};

// A peer steps its own weights, as a replica of DiLoCo does (diloco.h). A step of the swarm is a
// round: it averages the changes of one fragment, fragment s modulo their number in step s, which
// then makes an outer step. A peer counts by the samples that it has trained on since it last sent
// changes of the fragment. After a round without losses, all peers have the same bits of the outer
// weights and of the outer optimizer's states.
//
// The values that peers average are, in order: for each buffer of floating-point numbers whether it
// is finite, these buffers, the changes of the fragment that are not compressed, zeros up to
// exact(), and the changes that are compressed (SwarmCompression).
//
// The module holds the peer's own weights during steps, and the outer ones after
// synchronize_replicas(), make_whole() or fetch_states(). begin_training() must be called before
// the next forward pass.
class LocalUpdates : public SwarmStore {
 public:
  // The references must outlive this object. Throws Error(usage) for options out of range.
  LocalUpdates(torch::nn::Module& module, SwarmMember& member, const LocalUpdatesOptions& options);

  size_t exact() const override { return exact_; }
  bool compresses() const override;
  std::string schema() const override;
  // That of the module without integers, which each peer counts by itself, and of the outer
  // optimizer's states.
  std::string digest() const override;
  // The peer begins with the outer weights; what the donor has learned since the last outer steps
  // is not the peer's.
  void join() override;

  // The peer has trained on these.
  void add_samples(int64_t samples);
  // Gives the changes of the fragment of this step to the average of the step, which is on its way
  // then. Throws Error(failure) if they are not finite.
  void send(int64_t step);
  // Whether finish() is awaited.
  bool is_sent() const { return sent_.has_value(); }
  // Waits for the average: SwarmMember::finish(). Makes the outer step if there is a mean. The
  // changes count again in the next round with other outcomes.
  SwarmMember::Outcome finish(const SwarmMember::Stops& stops);

  void begin_training() override { outer_.hide(); }
  // Throws Error(usage) if the module holds the outer weights.
  void step_by(const std::function<void()>& update) override;
  void synchronize_replicas() override { outer_.show(); }
  void fetch_states() override { outer_.show(); }
  // Returns "samples" (of each fragment, since its changes were sent) and OuterFragments::state().
  optim::NamedTensors state() const override;
  void load_state(const optim::NamedTensors& state) override;

 private:
  // Tensors of the module, or their places in values.
  struct Parts {
    std::vector<at::Tensor> changes, buffers;
  };
  struct Sent {
    int64_t fragment = 0;
    Parts parts = {};  // copies, which the means replace
    at::Tensor values = {};
    int64_t samples = 0;
  };

  int64_t flags() const { return static_cast<int64_t>(outer_.buffer_names().size()); }
  // How many numbers of these changes are compressed, or are not.
  int64_t count(const std::vector<at::Tensor>& changes, bool are_compressed) const;
  Parts places_in(const at::Tensor& values, const Parts& like) const;
  at::Tensor gather(const Parts& parts) const;

  const LocalUpdatesOptions options_;
  OuterFragments outer_;
  size_t exact_ = 0;
  std::vector<int64_t> samples_;  // of each fragment, since its changes were sent
  std::optional<Sent> sent_;
};

}  // namespace troika::parallel
