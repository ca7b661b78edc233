// Means over the members of a quorum, for outer steps.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/comm/codec/encoding.h"
#include "troika/parallel/diloco/replica_mean.h"
#include "troika/quorum/member.h"

namespace troika::parallel {

struct QuorumMeanOptions {
  std::string codec = "none";  // a name of comm::CodecOptions
  // Changes that are not finite throw Error(failure) before they are added to those of the others.
  bool require_finite = true;
};

// Each mean commits a step of the quorum, which must have begun; members count by their samples. A
// member that is lost meanwhile does not count. Sums are in float64 if a tensor is, otherwise in
// float32. With a codec, each partial sum of the ring is rounded.
class QuorumMean : public ReplicaMean {
 public:
  // The member must outlive this object. No other function of the member but abandon() may be
  // called between start() and wait().
  QuorumMean(quorum::Member& member, const QuorumMeanOptions& options);

  // The messages travel in a thread of their own.
  void start(const std::vector<at::Tensor>& changes,
             const std::vector<at::Tensor>& buffers) override;
  // Throws the errors of quorum::Member::sum().
  void wait() override;
  // See quorum_statistics().
  std::vector<std::pair<std::string, double>> statistics() const override;

 private:
  template <typename Number>
  void average(const std::vector<at::Tensor>& buffers,
               const std::vector<at::Tensor>& changes) const;

  quorum::Member& member_;
  const QuorumMeanOptions options_;
  const std::shared_ptr<const comm::Encoding> encoding_;  // null: none
  std::future<void> sum_;
};

}  // namespace troika::parallel
