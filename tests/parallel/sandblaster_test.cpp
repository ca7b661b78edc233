// Sandblaster's vectors when a replica is lost before the first iteration of a resumed run.
#include <gtest/gtest.h>

#include "tests/parallel/replica.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/parallel/servers/sandblaster.h"

namespace troika::parallel {
namespace {

using comm::Group;

const SandblasterOptions kOneServer{.servers = {.count = 1}, .sandblaster = {.portions = 1}};

struct Valley : torch::nn::Module {
  Valley() : x(register_parameter("x", at::tensor({-1.2, 1.0, 0.5, -0.3}, at::kDouble))) {}
  // Rosenbrock's function of two pairs.
  at::Tensor loss() const {
    const auto a = x.slice(0, 0, 4, 2), b = x.slice(0, 1, 4, 2);
    return (10 * (b - a.square()).square() + (1 - a).square()).sum();
  }
  at::Tensor x;
};

void iterate(Valley& valley, Sandblaster& sandblaster) {
  sandblaster.iterate([&](const PortionWork& work) -> std::optional<double> {
    valley.zero_grad();
    const auto loss = valley.loss() / static_cast<double>(work.portions);
    loss.backward();
    work.gradient.add_(valley.x.grad());
    return loss.item<double>();
  });
}

// It had begun to give the vectors of the checkpoint to the servers when the other one was done.
TEST(Sandblaster, AReplicaThatIsLostInAResumptionChangesNothing) {
  optim::NamedTensors state;
  at::Tensor before, after;
  comm::local::run(1, [&](const Group& group) {
    Valley valley;
    Sandblaster sandblaster(valley, group, kOneServer);
    for (int i = 0; i < 4; ++i) iterate(valley, sandblaster);
    sandblaster.fetch_states();
    state = sandblaster.state();
    before = valley.x.detach().clone();
    iterate(valley, sandblaster);
    after = valley.x.detach().clone();
  });
  comm::local::run(2, [&](const Group& group) {
    Valley valley;
    Sandblaster sandblaster(valley, group, kOneServer);
    {
      const at::NoGradGuard no_grad;
      valley.x.copy_(before);
    }
    if (group.rank() == 0) {
      sandblaster.spread_parameters();
      sandblaster.load_state(state);
      sandblaster.fetch_states();
    }
    group.barrier();
    if (group.rank() == 1) return sandblaster.spread_parameters();
    iterate(valley, sandblaster);
    expect_near({valley.x.detach()}, {after}, 1e-9);
  });
}

}  // namespace
}  // namespace troika::parallel
