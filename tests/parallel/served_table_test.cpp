// Parameters as keys of a table, on servers of a simulated network.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/server/nodes.h"
#include "troika/parallel/servers/served_table.h"

namespace troika::parallel {
namespace {

// Two parameters with a rule of plain SGD: the first one has two keys.
class ServedTables : public testing::Test {
 protected:
  ServedTables()
      : first_(at::zeros({3, 100}, at::kDouble)),
        second_(at::zeros({5}, at::kDouble)),
        table_("w", {.kind = server::UpdateKind::sgd, .rate = 1}, 1, at::kDouble) {
    table_.add({.name = "first", .tensor = first_}, 0);
    table_.add({.name = "second", .tensor = second_}, 1);
    nodes_ = std::make_unique<server::Nodes>(server::SchedulerOptions{
        .tables = {table_.spec(server::Application::per_push)}, .ranges = 2, .first_servers = 2});
    nodes_->add_all(2, 1);
  }
  server::Worker& worker() { return nodes_->worker(0); }
  server::Handle push(double gradient) {
    return *table_.push(worker(),
                        {at::full_like(first_, gradient), at::full_like(second_, -gradient)},
                        /*rate=*/1, /*factor=*/1);
  }
  server::Handle pull() {
    const auto pulled = table_.pull(worker());
    pulled.wait(server::soon());
    return pulled;
  }
  void expect_taken(const server::Handle& pulled, double sum) {
    table_.take(pulled);
    EXPECT_TRUE(at::equal(first_, at::full_like(first_, -sum))) << first_;
    EXPECT_TRUE(at::equal(second_, at::full_like(second_, sum))) << second_;
  }

  at::Tensor first_, second_;
  ServedTable table_;
  std::unique_ptr<server::Nodes> nodes_;
};

// More pushes than a worker sends at once: the others wait, and their gradients stay.
TEST_F(ServedTables, KeepTheGradientsOfUnfinishedPushes) {
  std::vector<server::Handle> pushes;
  for (int i = 1; i <= 24; ++i) pushes.push_back(push(i));
  for (const auto& pushed : pushes) pushed.wait(server::soon());
  expect_taken(pull(), 24 * 25 / 2);
}

TEST_F(ServedTables, KeepPulledValuesUntilTheirCallIsGone) {
  push(1).wait(server::soon());
  const double* place = nullptr;
  {
    const auto before = pull();
    push(2).wait(server::soon());
    const auto after = pull();
    place = after.values<double>().data();
    expect_taken(before, 1);
    expect_taken(after, 3);
  }
  EXPECT_EQ(pull().values<double>().data(), place) << "the memory is used again";
}

}  // namespace
}  // namespace troika::parallel
