// Averages of gradients by summation servers (BytePS: Jiang et al., OSDI 2020).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/trace.h"
#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/layout/summation.h"
#include "troika/parallel/bucket_sums.h"
#include "troika/parallel/servers/bucket_momentum.h"
#include "troika/server/summation.h"
#include "troika/server/world.h"

namespace troika::parallel {

struct SummationOptions {
  // `count` is the number of servers on spare machines, which were launched beside the ranks; each
  // rank's process has one more. The other values but limit_seconds are not used.
  layout::ServerExchange servers = {};
  layout::SummationExchange sums = {};
  // The ranks that exchange buckets with servers, ascending; the mean is that of these ranks. The
  // servers of other ranks' processes sum nothing. Empty: all ranks.
  std::vector<int> members = {};
  // How gradients and means are sent. Sums are of the gradients' type.
  server::SummationCoding coding = {};
  // Records, on track "communication", a span "bucket" from the push of a bucket to its mean. Must
  // outlive the object.
  Trace* trace = nullptr;
};

// Averages the buckets of a DataParallel, which are float32 or float64 on the host:
//
//   DataParallelOptions options{.sums = std::make_shared<SummationServers>(group, options)};
//   DataParallel ddp(*model, group, options);
//
// Buckets are cut into partitions, each of which one server sums in the order of ranks. A partition
// is pushed when its bucket is complete and its turn has come: with priorities, the partition that
// the next forward pass uses first goes first, as buckets are in the order in which gradients
// arrive. The bytes that are pushed and not confirmed by servers do not exceed the credit, unless a
// single partition does. All ranks get the same bits.
class SummationServers : public BucketSums {
 public:
  // Starts the servers in the ranks' processes, and joins those that were launched. A single rank
  // without launched servers has none. Called by all ranks; blocks for the group's timeout at most.
  // Throws Error(usage) for another number of servers than was launched and for links that do not
  // fit, and the errors of server::World. Ranks that are no members only stay for the others: of
  // the other functions, they may call all but start(), finish(), finish_any() and exchange().
  SummationServers(const comm::Group& group, const SummationOptions& options);
  // The same with a role that does not come from the environment.
  SummationServers(const comm::Group& group, const SummationOptions& options,
                   const server::WorldOptions& role);
  // Leaves, and serves the other ranks until they have left, for some seconds at most, unless an
  // exception is on its way.
  ~SummationServers() override;

  void lay_out(const std::vector<Bucket>& buckets) override;
  // With error feedback, what was left out is multiplied by the rate of its step / that of the
  // next.
  void expect_rate(double rate) override;
  void start(const Bucket& bucket) override;
  // Throws Error(server, peer or timeout), or the group's error if it names a rank that is lost.
  void finish() override;
  size_t finish_any(const std::vector<size_t>& buckets) override;
  void drop() override;
  // With error feedback, "error.NAME" is what encodings have left out of this rank's gradients of
  // parameter NAME so far, and "mean_error.NAME", of rank 0, what servers' have left out of means.
  // "rate" is the last learning rate above 0, and "members" the number of ranks that push: if it is
  // another one later, loaded errors are scaled. With momentum, "momentum.NAME" is that of the
  // parameter on this rank. "rank" is the rank. Blocks; does not wait for other ranks. Empty, with
  // a warning, if servers are lost or buckets are under way.
  state::StateDict state() override;
  // A rank that loads the errors or momentum of another rank's gradients has none, nor has one
  // without them. A parameter has the tensors of its name and shape, or none, in whatever bucket.
  // If this run keeps no such tensors, or lacks their parameters, warns and drops them. Ranks that
  // are no members ignore it. Throws Error(usage) for other names.
  void load_state(const state::StateDict& state) override;

  // Whether state() of this rank has tensors between steps.
  bool has_state() const;

  // Makes the servers act on the values of these buckets, which were laid out, and replaces them by
  // what servers return. Blocks. Throws the errors of finish(). A single rank without launched
  // servers does nothing.
  void exchange(const std::vector<Bucket>& buckets, server::SummationAction action);

  // The bytes of gradients that this rank has pushed and got back, including those of its own
  // process's server.
  server::SummationTraffic traffic();
  // The same of one server: those of spare machines come first, then those of members.
  server::SummationTraffic traffic(size_t server);
  // The bandwidths that were measured at the start, in bytes per second: those of spare machines'
  // links, then those of members'. Empty: none were, or this rank is no member.
  const std::vector<double>& link_rates() const { return link_rates_; }

 private:
  // A parameter's part of a bucket.
  struct LaidPart {
    std::string name;
    int64_t offset = 0;  // elements
    std::vector<int64_t> sizes = {}, strides = {};

    at::Tensor of(const at::Tensor& flat) const { return flat.as_strided(sizes, strides, offset); }
  };

  // A bucket as it was laid out.
  struct Laid {
    int64_t count = 0;  // elements
    server::ValueType type = server::ValueType::float32;
    size_t first = 0, end = 0;  // its partitions
    std::vector<LaidPart> parts = {};
  };

  void push(const Bucket& bucket, server::SummationAction action);
  // Queues an action on the partitions of a bucket, whose bytes begin at `values`. `done` runs for
  // each of them under the rules for callbacks.
  void push(size_t bucket, char* values, server::SummationAction action,
            const std::function<void()>& done);
  // Returns zeros like a bucket.
  at::Tensor zeros_like_bucket(size_t bucket) const;
  // Adds copies of the parts of `flat`, which is like the bucket, to a state: those of parameter
  // NAME as `kind` + NAME.
  void save_parts(size_t bucket, const std::string& kind, const at::Tensor& flat,
                  state::StateDict& state) const;
  // Moves the tensors of this kind and of the bucket's parameters into one like the bucket, with
  // zeros elsewhere. Returns an undefined one if there are none.
  at::Tensor take_parts(size_t bucket, const std::string& kind,
                        std::map<std::string, at::Tensor>& tensors) const;
  void wait(const std::function<bool()>& is_enough);
  // Makes this rank's client encode the bucket's next gradients with these errors.
  void set_left_out(size_t bucket, const at::Tensor& flat);
  // Makes servers act on the values of buckets, of those that are defined, and waits without the
  // other ranks. If that fails, drops what was pushed, so that its memory may be freed.
  void act_alone(const std::vector<at::Tensor>& buckets, server::SummationAction action);

  comm::Group group_;
  const SummationOptions options_;
  BucketMomentum momentum_;
  double rate_ = 1;                       // of pushes
  std::optional<double> rate_of_errors_;  // that of the last pushes above 0, or of the first ones
  int members_ = 1;                       // ranks that push
  std::vector<double> shares_;            // by server
  std::vector<double> link_rates_;        // by server
  std::unique_ptr<server::World> world_;
  std::unique_ptr<server::SummationClient>
      client_;                                 // null: nothing is exchanged, or not by this rank
  std::vector<layout::Partition> partitions_;  // keys are indices of it, and layout_
  std::vector<Laid> laid_;                     // by bucket
  uint64_t layout_ = server::kLayoutBit;       // of keys; changes with each lay_out()
  // By bucket, the partitions whose means are missing; the client's callbacks change it.
  std::shared_ptr<std::vector<size_t>> missing_;
};

}  // namespace troika::parallel
