#include "troika/comm/messages/routed.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/comm/messages/channel.h"

namespace troika::comm {

namespace {

class RoutedGroup : public GroupImpl {
 public:
  RoutedGroup(std::shared_ptr<GroupImpl> near, std::shared_ptr<GroupImpl> far, GroupInfo info)
      : GroupImpl(std::move(info), far->lifeline()), near_(std::move(near)), far_(std::move(far)) {
    near_->drive_while_waiting([weak = std::weak_ptr(far_)] {
      const auto far = weak.lock();
      return far && far->drive();
    });
    const auto& nodes = this->info().nodes;
    const int mine = nodes[static_cast<size_t>(rank())];
    int neighbours = 0;
    for (const int node : nodes) near_rank_.push_back(node == mine ? neighbours++ : kFar);
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    const int near = near_rank_[static_cast<size_t>(peer)];
    return near == kFar ? far_->send(peer, tag, data, bytes) : near_->send(near, tag, data, bytes);
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    const int near = near_rank_[static_cast<size_t>(peer)];
    return near == kFar ? far_->receive(peer, tag, data, bytes)
                        : near_->receive(near, tag, data, bytes);
  }
  bool send_at_once(int peer, uint32_t tag, std::string_view head,
                    std::string_view payload) override {
    const int near = near_rank_[static_cast<size_t>(peer)];
    return near == kFar ? far_->send_at_once(peer, tag, head, payload)
                        : near_->send_at_once(near, tag, head, payload);
  }
  std::unique_ptr<LentMessage> receive_lent(int peer, uint32_t tag, size_t most) override {
    const int near = near_rank_[static_cast<size_t>(peer)];
    return near == kFar ? far_->receive_lent(peer, tag, most)
                        : near_->receive_lent(near, tag, most);
  }
  std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                size_t bytes) override {
    const int near = near_rank_[static_cast<size_t>(peer)];
    return near == kFar ? far_->send_until_received(peer, tag, data, bytes)
                        : near_->send_until_received(near, tag, data, bytes);
  }
  // Shared memory passes each message on at once.
  void hold_sends(int peer) override {
    if (near_rank_[static_cast<size_t>(peer)] == kFar) far_->hold_sends(peer);
  }
  void release_sends(int peer) override {
    if (near_rank_[static_cast<size_t>(peer)] == kFar) far_->release_sends(peer);
  }

  bool drive() override { return far_->drive(); }

  bool run_within_node(Call call, Deadline deadline) override {
    call.fingerprint.sequence = calls_within_node_++;
    Channel channel(*near_, call.fingerprint);
    near_->verify_call(channel, call, deadline);
    TROIKA_CHECK(near_->try_native(call, deadline), "the node's group carries out the call");
    return true;
  }

  at::Tensor allocate(int64_t count, c10::ScalarType type) override {
    return near_->allocate(count, type);
  }

  std::shared_ptr<GroupImpl> split(const std::shared_ptr<GroupImpl>& self, GroupInfo info,
                                   const std::vector<int>& members, Deadline deadline) override {
    GroupInfo near = info;
    near.backend = near_->info().backend;
    near.any_thread = near_->info().any_thread;
    near.receives_any = near_->info().receives_any;
    near.nodes.clear();
    near.world_ranks.clear();
    std::vector<int> neighbours;
    for (size_t m = 0; m < members.size(); ++m) {
      const int neighbour = near_rank_[static_cast<size_t>(members[m])];
      if (neighbour == kFar) continue;
      if (members[m] == rank()) near.rank = static_cast<int>(neighbours.size());
      neighbours.push_back(neighbour);
      near.nodes.push_back(info.nodes[m]);
      near.world_ranks.push_back(info.world_ranks[m]);
    }
    near.size = static_cast<int>(neighbours.size());
    // Keeps this whole group alive: destroying its far back end would leave the world.
    auto inside = near_->split(self, std::move(near), neighbours, deadline);
    if (neighbours.size() == members.size()) return inside;
    info.backend = far_->info().backend;
    info.receives_any = far_->info().receives_any;
    return make_routed(std::move(inside), far_->split(far_, std::move(info), members, deadline));
  }

 private:
  static constexpr int kFar = -1;

  const std::shared_ptr<GroupImpl> near_;
  const std::shared_ptr<GroupImpl> far_;
  std::vector<int> near_rank_;  // rank in `near_`, by rank
  int64_t calls_within_node_ = 0;
};

}  // namespace

std::shared_ptr<GroupImpl> make_routed(std::shared_ptr<GroupImpl> near,
                                       std::shared_ptr<GroupImpl> far) {
  GroupInfo info = far->info();
  info.backend = fmt::format("{}+{}", near->info().backend, info.backend);
  info.any_thread = near->info().any_thread && info.any_thread;
  info.receives_any = false;
  info.can_fail_alone = near->info().can_fail_alone && info.can_fail_alone;
  return std::make_shared<RoutedGroup>(std::move(near), std::move(far), std::move(info));
}

}  // namespace troika::comm
