#include "troika/comm/local/lone_rank.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/comm/diagnostics/lifeline.h"
#include "troika/comm/messages/group_impl.h"

namespace troika::comm::local {

namespace {

// There is nobody to tell.
class SilentPlane : public ControlPlane {
 public:
  void listen(Listener) override {}
  void fail(const std::string&) override {}
  void leave(const std::string&) override {}
  cluster::Answers ask_all(const std::string&, Deadline) override { return {}; }
};

[[noreturn]] void refuse(const char* what) {
  throw Error("comm", ErrorKind::usage,
              {.what = "a rank whose group has no other ranks",
               .got = what,
               .expected = "collectives of the whole group"});
}

GroupInfo lone_info(int size) {
  auto info = world_on_one_node("lone", 0, size);
  info.is_lone = true;
  return info;
}

class LoneRank : public GroupImpl {
 public:
  LoneRank(int size, std::function<void(const Call&)> observe)
      : GroupImpl(lone_info(size), std::make_shared<Lifeline>(std::make_unique<SilentPlane>(), 0)),
        observe_(std::move(observe)) {}

  std::unique_ptr<Transfer> send(int, uint32_t, const void*, size_t) override {
    refuse("a message");
  }
  std::unique_ptr<Transfer> receive(int, uint32_t, void*, size_t) override { refuse("a message"); }
  void verify_call(Channel&, const Call&, Deadline) override {}
  bool try_native(const Call& call, Deadline) override {
    observe_(call);
    return true;
  }
  std::shared_ptr<GroupImpl> split(const std::shared_ptr<GroupImpl>&, GroupInfo,
                                   const std::vector<int>&, Deadline) override {
    refuse("a part of the group");
  }

 private:
  const std::function<void(const Call&)> observe_;
};

}  // namespace

Group lone_rank(int size, std::function<void(const Call&)> observe) {
  return Group(std::make_shared<LoneRank>(size, std::move(observe)));
}

}  // namespace troika::comm::local
