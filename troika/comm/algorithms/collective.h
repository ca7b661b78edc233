// Carries out a whole call over messages: selects the algorithm for each operation.
#pragma once

#include <optional>

#include "troika/comm/algorithms/measure_links.h"
#include "troika/comm/algorithms/nodes.h"
#include "troika/comm/call/call.h"

namespace troika::comm {

// Carries out the calls of one group for which the back end has no faster way. Buffers are on the
// host.
class MessageCollectives {
 public:
  // `info` is that of the group, as this rank sees it.
  explicit MessageCollectives(const GroupInfo& info) : nodes_(info.nodes, info.rank) {}

  // Carries out the call of `channel`, after GroupImpl::verify_call(). Blocks. Throws the errors of
  // messages, and Error(usage) on every rank if the splits of an all_to_all do not match.
  void run(Channel& channel, const Call& call, Deadline deadline);

  // Uses `links` instead of measured costs; must be the same on all ranks.
  void assume(const std::optional<Links>& links) { links_ = links; }
  const std::optional<Links>& known_links() const { return links_; }

  const Traffic& traffic() const { return traffic_; }

 private:
  void all_reduce(const RankSubset& subset, const Call& call);
  void reduce_scatter(const RankSubset& subset, const Call& call);
  void all_gather(const RankSubset& subset, const Call& call);
  void broadcast(const RankSubset& subset, const Call& call);
  void barrier(const RankSubset& subset);
  // Returns the costs, which all ranks measure now unless they are already measured or assumed.
  const Links& links(const RankSubset& subset);
  void check_splits(const RankSubset& subset, const Call& call);

  const Nodes nodes_;
  Traffic traffic_;
  std::optional<Links> links_;
};

}  // namespace troika::comm
