// Means over the ranks of a group, for outer steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troika/comm/codec/codec.h"
#include "troika/comm/group.h"
#include "troika/parallel/diloco/replica_mean.h"
#include "troika/parallel/hook_thread.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

class GroupMean : public ReplicaMean {
 public:
  // `codec`: a name of comm::CodecOptions; errors are not kept. `beside`: messages travel while the
  // caller goes on, in a thread and a group of their own; otherwise in wait(). Called by all ranks;
  // blocks.
  GroupMean(comm::Group group, const std::string& codec, bool beside);

  void start(const std::vector<at::Tensor>& changes,
             const std::vector<at::Tensor>& buffers) override;
  void wait() override;

 private:
  void average(const comm::Group& group, const comm::GradientBucket& bucket) const;

  struct Packed {
    PackedTensors tensors;
    comm::GradientBucket bucket;
  };

  const comm::Group group_;
  const std::unique_ptr<comm::Codec> codec_, exact_;
  std::vector<Packed> packed_;          // between start() and wait()
  size_t coded_ = 0;                    // the first of packed_ are changes
  std::unique_ptr<HookThread> beside_;  // null: none
};

}  // namespace troika::parallel
