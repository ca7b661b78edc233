// Edges on back end local, and the calls that they make to a back end. conformance_moving.cpp tests
// edges on all back ends.
#include "troika/comm/edge.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "troika/comm/edge_memory.h"
#include "troika/comm/local/local.h"
#include "troika/comm/messages/group_impl.h"

namespace troika::comm {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kLarge = 10'000;  // elements, which are no more inline

// Records the messages that a rank gives to its back end.
struct Posted {
  std::mutex mutex;
  std::vector<size_t> frames, payloads;                  // bytes sent
  std::vector<size_t> frame_receives, payload_receives;  // bytes of room
};

class Recording : public GroupImpl {
 public:
  Recording(std::shared_ptr<GroupImpl> inner, Posted& posted)
      : GroupImpl(inner->info(), inner->lifeline()), inner_(std::move(inner)), posted_(posted) {}

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    return inner_->send(peer, tag, data, bytes);
  }
  std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                size_t bytes) override {
    note(tag, bytes, posted_.frames, posted_.payloads);
    return inner_->send_until_received(peer, tag, data, bytes);
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    if (is_edge(tag)) note(tag, bytes, posted_.frame_receives, posted_.payload_receives);
    return inner_->receive(peer, tag, data, bytes);
  }

 private:
  void note(uint32_t tag, size_t bytes, std::vector<size_t>& frames,
            std::vector<size_t>& payloads) {
    const std::lock_guard lock(posted_.mutex);
    ((tag & kEdgeFrameTag) == kEdgeFrameTag ? frames : payloads).push_back(bytes);
  }

  const std::shared_ptr<GroupImpl> inner_;
  Posted& posted_;
};

// Two ranks whose back end is recorded.
void run_recorded(Posted& posted, const std::function<void(Group)>& body) {
  auto impls = local::make(2);
  for (auto& impl : impls) impl = std::make_shared<Recording>(impl, posted);
  local::run_ranks(std::move(impls), body, {});
}

TEST(Edge, CarriesTensorsOfAnyShapeAndDtypeInTheirOrder) {
  const auto tensors = [] {
    return std::vector<at::Tensor>{
        at::full({}, 3.5, at::kDouble),          at::arange(6, at::kLong).view({2, 3}),
        at::arange(6, at::kLong).view({3, 2}),   at::zeros({4, 0, 2}, at::kHalf),
        at::arange(kLarge).view({100, 100}).t(), at::arange(kLarge).view({100, 100}).gt(5000),
        at::arange(3 * kLarge, at::kInt),        at::arange(3 * kLarge, at::kInt).add(1),
        at::ones({2, 2}, at::kBFloat16),         at::arange(kLarge, at::kInt),
        at::ones(std::vector<int64_t>(64, 1)),
    };
  };
  local::run(2, [&](const Group& group) {
    if (group.rank() == 0) {
      const auto edge = group.edge_to(1, 4);
      for (const auto& tensor : tensors()) edge.send(tensor);
      return;
    }
    const auto edge = group.edge_from(0, 4);
    for (const auto& expected : tensors()) {
      const auto tensor = edge.receive();
      EXPECT_EQ(tensor.scalar_type(), expected.scalar_type());
      EXPECT_TRUE(tensor.equal(expected)) << expected.sizes();
    }
  });
}

TEST(Edge, ItsHeaderTravelsOnlyWhenShapeOrDtypeChange) {
  Posted posted;
  run_recorded(posted, [](const Group& group) {
    if (group.rank() == 0) {
      const auto edge = group.edge_to(1, 0, {.depth = 8});
      for (int i = 0; i < 3; ++i) edge.send(at::zeros({4}));
      for (int i = 0; i < 2; ++i) edge.send(at::zeros({2, 2}));
      edge.send(at::zeros({2, 2}, at::kInt));
      for (int i = 0; i < 2; ++i) edge.send(at::zeros({kLarge}));
      return;
    }
    const auto edge = group.edge_from(0, 0, {.depth = 8});
    for (int i = 0; i < 8; ++i) edge.receive();
  });
  constexpr size_t kFrame = 8, kWord = 8, kData = 16;
  EXPECT_THAT(posted.frames, ElementsAre(kFrame + 2 * kWord + kData, kFrame + kData, kFrame + kData,
                                         kFrame + 3 * kWord + kData, kFrame + kData,
                                         kFrame + 3 * kWord + kData, kFrame + 2 * kWord, kFrame));
  EXPECT_THAT(posted.payloads, ElementsAre(4 * kLarge, 4 * kLarge));
}

TEST(Edge, ReceivesArePostedBeforeTheirTensorsAreAwaited) {
  Posted posted;
  run_recorded(posted, [&](const Group& group) {
    if (group.rank() == 0) {
      group.barrier();
      group.edge_to(1, 0, {.depth = 3}).send(at::zeros({kLarge}));
      return;
    }
    const auto edge = group.edge_from(0, 0, {.depth = 3});
    EXPECT_EQ(posted.frame_receives.size(), 3U);
    group.barrier();
    edge.receive();
    const std::lock_guard lock(posted.mutex);
    EXPECT_EQ(posted.frame_receives.size(), 4U);
    EXPECT_THAT(posted.payload_receives,
                ElementsAre(4 * kLarge, 4 * kLarge, 4 * kLarge, 4 * kLarge));
  });
}

TEST(Edge, ASenderThatIsAheadByItsDepthWaitsAndNamesTheReceiver) {
  std::promise<void> over;
  local::run(2,
             [&](const Group& group) {
               if (group.rank() == 1) {
                 const auto edge = group.edge_from(0, 4, {.depth = 3});
                 edge.receive();
                 return over.get_future().wait();
               }
               const auto edge = group.edge_to(1, 4, {.depth = 3, .label = "activations"});
               try {
                 for (int i = 0; i < 5; ++i) {
                   EXPECT_LE(edge.kept_bytes(), 3 * 8);
                   edge.send(at::zeros({2}));
                 }
                 ADD_FAILURE() << "no error";
               } catch (const Error& error) {
                 EXPECT_EQ(error.kind(), ErrorKind::timeout);
                 EXPECT_THAT(
                     error.what(),
                     AllOf(HasSubstr("send #1 to rank 1, edge 4 'activations' (edge_test.cpp:"),
                           HasSubstr(" of Float x 2 timed out on rank 0 after "),
                           HasSubstr("rank 1 has not called receive for it")));
               }
               over.set_value();
             },
             {.timeout = Milliseconds(200)});
}

TEST(Edge, AReceiverNamesTheSenderThatSendsNothing) {
  std::promise<void> over;
  local::run(2,
             [&](const Group& group) {
               if (group.rank() == 0) {
                 // Another edge, and messages, do not count.
                 group.edge_to(1, 5).send(at::zeros({2}));
                 group.send(at::zeros({2}), 1, 4);
                 return over.get_future().wait();
               }
               group.edge_from(0, 5).receive();
               group.receive(at::zeros({2}), 0, 4).wait();
               try {
                 group.edge_from(0, 4, {.label = "gradients"}).receive();
                 ADD_FAILURE() << "no error";
               } catch (const Error& error) {
                 EXPECT_EQ(error.kind(), ErrorKind::timeout);
                 EXPECT_THAT(
                     error.what(),
                     AllOf(HasSubstr("receive #0 from rank 0, edge 4 'gradients' (edge_test.cpp:"),
                           HasSubstr(") timed out on rank 1 after "),
                           HasSubstr("rank 0 has not sent it (it has called nothing yet)")));
               }
               over.set_value();
             },
             {.timeout = Milliseconds(200)});
}

TEST(Edge, BuffersAreUsedAgainAndBounded) {
  local::run(2, [](const Group& group) {
    constexpr int kTensors = 100, kDepth = 3, kReferenced = 4;
    if (group.rank() == 0) {
      const auto edge = group.edge_to(1, 0, {.depth = kDepth});
      for (int i = 0; i < kTensors; ++i) edge.send(at::full({kLarge}, i, at::kInt));
      return;
    }
    const auto edge = group.edge_from(0, 0, {.depth = kDepth});
    std::vector<at::Tensor> referenced;
    std::set<void*> places;
    for (int i = 0; i < kTensors; ++i) {
      if (referenced.size() == kReferenced) referenced.erase(referenced.begin());
      referenced.push_back(edge.receive());
      places.insert(referenced.back().data_ptr());
      for (size_t r = 0; r < referenced.size(); ++r) {
        ASSERT_EQ(referenced[r][0].item<int64_t>(),
                  i + 1 - static_cast<int>(referenced.size() - r));
      }
    }
    EXPECT_LE(places.size(), 2U * kDepth + kReferenced);
    const int64_t held = edge.buffer_bytes();
    referenced.clear();
    EXPECT_EQ(edge.buffer_bytes(), held - 4 * kLarge) << "as many are kept as the edge is deep";
  });
}

// Like the transfer of a back end that sends from the tensor's own memory.
class NotCopied : public Transfer {
 public:
  explicit NotCopied(std::unique_ptr<Transfer> inner) : inner_(std::move(inner)) {}
  void wait(Deadline deadline) override { inner_->wait(deadline); }
  bool done() override { return inner_->done(); }
  bool has_copied() override { return done(); }

 private:
  const std::unique_ptr<Transfer> inner_;
};

class NotCopying : public Recording {
 public:
  using Recording::Recording;
  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    return send_until_received(peer, tag, data, bytes);
  }
  std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                size_t bytes) override {
    return std::make_unique<NotCopied>(Recording::send_until_received(peer, tag, data, bytes));
  }
};

// So a sender that keeps tensors until their Work is done keeps no more than the edge's depth.
TEST(Edge, SentWorkIsDoneWithoutAWaitOnceItsTensorIsReceived) {
  Posted posted;
  auto impls = local::make(2);
  for (auto& impl : impls) impl = std::make_shared<NotCopying>(impl, posted);
  std::promise<void> received, looked;
  const auto body = [&](const Group& group) {
    const auto tensor = at::arange(kLarge);
    if (group.rank() == 1) {
      looked.get_future().wait();
      EXPECT_TRUE(group.edge_from(0).receive().equal(tensor));
      const auto into = at::empty_like(tensor);
      group.receive(into, 0).wait();
      EXPECT_TRUE(into.equal(tensor));
      return received.set_value();
    }
    const auto on_edge = group.edge_to(1).send(tensor);
    const auto message = group.send(tensor, 1);
    EXPECT_FALSE(on_edge.done());
    EXPECT_FALSE(message.done());
    looked.set_value();
    received.get_future().wait();
    EXPECT_TRUE(on_edge.done());
    EXPECT_TRUE(message.done());
    on_edge.wait();
    message.wait();
    EXPECT_TRUE(on_edge.done());
  };
  local::run_ranks(std::move(impls), body, {});
}

TEST(Edge, ItsSenderKeepsWhatIsPredicted) {
  Posted posted;
  auto impls = local::make(2);
  for (auto& impl : impls) impl = std::make_shared<NotCopying>(impl, posted);
  const auto body = [](const Group& group) {
    constexpr int kDepth = 3;
    if (group.rank() == 1) {
      const auto edge = group.edge_from(0, 0, {.depth = kDepth});
      group.barrier();
      for (int i = 0; i < kDepth; ++i) edge.receive();
      return;
    }
    const auto edge = group.edge_to(1, 0, {.depth = kDepth});
    for (int i = 0; i < kDepth; ++i) edge.send(at::zeros({kLarge}));
    EXPECT_EQ(edge.kept_bytes(),
              sending_edge_bytes({.tensor_bytes = 4 * kLarge, .depth = kDepth}).tensors);
    group.barrier();
  };
  local::run_ranks(std::move(impls), body, {});
}

TEST(Edge, ASentTensorMayBeReusedBeforeItIsReceived) {
  local::run(2,
             [](const Group& group) {
               const auto tensor = at::arange(kLarge);
               if (group.rank() == 0) {
                 const auto edge = group.edge_to(1);
                 edge.send(tensor).wait();
                 tensor.fill_(-1);
                 EXPECT_EQ(edge.kept_bytes(), 8 * kLarge);
                 return group.barrier();
               }
               const auto edge = group.edge_from(0);
               group.barrier();
               EXPECT_TRUE(edge.receive().equal(tensor));
             },
             {.timeout = Milliseconds(2000)});
}

TEST(Edge, ATensorThatDoesNotFitIsRefused) {
  local::run(2, [](const Group& group) {
    const auto fitting = at::zeros({3, 2}).t();
    if (group.rank() == 0) {
      const auto edge = group.edge_to(1, 7);
      edge.send(at::ones({2, 3}));
      edge.send(at::ones({2, 3}));
      return;
    }
    const auto edge = group.edge_from(0, 7);
    edge.receive_into(fitting);
    EXPECT_TRUE(fitting.eq(1).all().item<bool>());
    EXPECT_ERROR(edge.receive_into(at::zeros({3, 2}, at::kHalf)), ErrorKind::usage,
                 "[comm] a tensor of another shape or dtype from rank 0, edge 7; got Float [2, 3], "
                 "expected Half [3, 2]");
  });
}

TEST(Edge, WrongArgumentsAreRefused) {
  local::run(2, [](const Group& group) {
    const int other = 1 - group.rank();
    const auto edge = group.edge_to(other, 3);
    EXPECT_ERROR(group.edge_to(other, 3), ErrorKind::usage,
                 "[comm] edge 3 to rank " + std::to_string(other) +
                     " exists already (keep its end, or choose another tag)");
    EXPECT_ERROR(group.edge_to(group.rank()), ErrorKind::usage,
                 "[comm] no such peer for a message; got " + std::to_string(group.rank()) +
                     ", expected another rank of 0 to 1");
    EXPECT_ERROR(group.edge_from(other, 8191), ErrorKind::usage,
                 "[comm] no such tag; got 8191, expected 0 to 8190");
    EXPECT_ERROR(group.edge_from(other, 0, {.depth = 0}), ErrorKind::usage,
                 "[comm] no such depth of an edge; got 0, expected 1 to 65535");
    EXPECT_ERROR(
        edge.send(at::ones(std::vector<int64_t>(65, 1))), ErrorKind::usage,
        "[comm] a tensor has too many dimensions for an edge; got 65, expected at most 64");
    // The same tag in the other direction, and as a message's, is another one.
    group.edge_from(other, 3);
  });
}

TEST(Edge, EndsOfDifferentDepthsAreTold) {
  local::run(2, [](const Group& group) {
    if (group.rank() == 0) {
      group.edge_to(1, 3, {.depth = 4}).send(at::zeros({2}));
    } else {
      EXPECT_ERROR(group.edge_from(0, 3).receive(), ErrorKind::usage,
                   "[comm] the ends of an edge have different depths: from rank 0, edge 3; got 4 "
                   "at its sender, expected 2");
    }
  });
}

TEST(Edge, ATensorOutlivesItsGroup) {
  std::optional<at::Tensor> tensor;
  local::run(2, [&](const Group& group) {
    if (group.rank() == 0) {
      group.edge_to(1).send(at::arange(kLarge));
    } else {
      tensor = group.edge_from(0).receive();
    }
  });
  EXPECT_TRUE(tensor->equal(at::arange(kLarge)));
}

// The posted receives of an edge are cancelled when its group is destroyed.
TEST(Edge, AGroupThatGoesLeavesNoReceivesBehind) {
  local::run(2, [](const Group& group) {
    const auto speak = [&](const Group& part, int tensors) {
      if (part.rank() == 0) {
        const auto edge = part.edge_to(1);
        for (int i = 0; i < tensors; ++i) edge.send(at::full({kLarge}, i));
      } else {
        const auto edge = part.edge_from(0);
        for (int i = 0; i < tensors; ++i) EXPECT_EQ(edge.receive()[0].item<int>(), i);
      }
    };
    speak(*group.split(0), 3);
    for (int i = 0; i < 510; ++i) group.split(0);
    speak(*group.split(0), 3);  // with the former's tags
  });
}

}  // namespace
}  // namespace troika::comm
