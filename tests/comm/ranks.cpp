// ranks BACKEND MODE, on the ranks that a launcher started:
//   conform   the conformance suite
//   mismatch  rank 1 calls another collective than the others
//   throw     rank 1 throws and lives on while the others wait for it
// In the last two every other rank must get the right error.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cstdio>
#include <optional>

#include "tests/comm/conformance.h"
#include "troika/base/error.h"
#include "troika/comm/world.h"

namespace troika::comm {
namespace {

// What the rank got to know, and whether that was right.
void expect_error(const std::optional<Error>& error, ErrorKind kind, const std::string& part) {
  ASSERT_TRUE(error) << "no error";
  EXPECT_EQ(error->kind(), kind) << error->what();
  EXPECT_THAT(error->what(), testing::HasSubstr(part));
}

std::optional<Error> error_of(const std::function<void()>& call) {
  try {
    call();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

void mismatch(Group group) {
  const auto error = error_of([&] {
    if (group.rank() == 1) {
      group.barrier({.label = "other"});
    } else {
      group.all_reduce(at::ones({8}), ReduceOp::sum, {.label = "mine"});
    }
  });
  expect_error(error, ErrorKind::usage, "ranks called different collectives");
  expect_error(error, ErrorKind::usage, "rank 1: barrier #0 'other'");
}

void one_throws(int rank, const std::function<Group()>& make) {
  try {
    auto group = make();
    if (rank == 1) throw std::runtime_error("the disk is full");
    const auto error = error_of([&] { group.barrier({.label = "waiting"}); });
    expect_error(error, ErrorKind::peer, "rank 1 is gone: its program failed");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the disk is full");
  }
}

}  // namespace
}  // namespace troika::comm

int main(int argc, char** argv) {
  using namespace troika;
  testing::InitGoogleTest(&argc, argv);
  const std::string mode = argv[2];
  const auto make = [&] { return comm::world({.backend = argv[1]}); };
  try {
    const auto environment = cluster::discover();
    if (mode == "conform") comm::conform(make());
    if (mode == "mismatch") comm::mismatch(make());
    if (mode == "throw") comm::one_throws(environment.rank, make);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  // Expectations fail the process that made them.
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
}
