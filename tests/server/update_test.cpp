#include "troika/server/update.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"

namespace troika::server {
namespace {

// Applies pushes one after the other to one value that begins at 1.
template <typename T>
T run_update(const std::string& text, const std::vector<T>& pushes) {
  const auto update = make_update(parse_update(text), {});
  T value = 1;
  std::vector<T> state(static_cast<size_t>(update.states));
  for (size_t i = 0; i < pushes.size(); ++i) {
    const Segment<T> segment{{&value, 1}, state, {&pushes[i], 1}, i + 1};
    if constexpr (std::is_same_v<T, float>) {
      update.apply32(segment);
    } else {
      update.apply64(segment);
    }
  }
  return value;
}

// The expected values are the formulas of PyTorch's optimizers, written out.
TEST(ServerUpdate, RulesAreThoseOfPyTorch) {
  EXPECT_DOUBLE_EQ(run_update<double>("sum", {2, 3}), 6);
  EXPECT_DOUBLE_EQ(run_update<double>("sum scale=0.5", {2, 3}), 3.5);
  EXPECT_DOUBLE_EQ(run_update<double>("sgd rate=0.1", {2, 3}), 0.5);
  EXPECT_DOUBLE_EQ(run_update<double>("momentum rate=0.1 momentum=0.5", {2, 3}),
                   1 - 0.1 * 2 - 0.1 * (0.5 * 2 + 3));
  EXPECT_DOUBLE_EQ(run_update<double>("adagrad rate=0.1 epsilon=0", {2, 3}),
                   1 - 0.1 * 2 / 2 - 0.1 * 3 / std::sqrt(4 + 9));
  const double m1 = 0.1 * 2, v1 = 0.01 * 4, m2 = 0.9 * m1 + 0.1 * 3, v2 = 0.99 * v1 + 0.01 * 9;
  const double first = 1 - 0.1 * (m1 / 0.1) / (std::sqrt(v1 / 0.01) + 1e-3);
  EXPECT_NEAR(run_update<double>("adam rate=0.1 beta1=0.9 beta2=0.99 epsilon=0.001", {2, 3}),
              first - 0.1 * (m2 / (1 - 0.81)) / (std::sqrt(v2 / (1 - 0.99 * 0.99)) + 1e-3), 1e-14);
  EXPECT_DOUBLE_EQ(run_update<double>("momentum rate=0.1 momentum=0.5 nesterov=1", {2}),
                   1 - 0.1 * (2 + 0.5 * 2));
  EXPECT_DOUBLE_EQ(run_update<double>("sgd rate=0.1 weight_decay=0.5", {2}), 1 - 0.1 * (2 + 0.5));
  EXPECT_NEAR(run_update<double>("adam rate=0.1 epsilon=0 weight_decay=0.5", {2}), 1 - 0.1, 1e-14)
      << "the first step is that of the sign";
  EXPECT_NEAR(run_update<double>("adamw rate=0.1 epsilon=0 weight_decay=0.5", {2}),
              (1 - 0.1 * 0.5) - 0.1, 1e-14)
      << "decoupled";
  EXPECT_FLOAT_EQ(run_update<float>("momentum rate=0.1 momentum=0.5", {2, 3}), 0.4f);
}

TEST(ServerUpdate, UseTheRateOfThePush) {
  for (const char* rule : {"sgd", "momentum", "adagrad", "adam", "adamw weight_decay=0.1"}) {
    const auto spec = parse_update(rule);
    auto other = spec;
    other.rate = 0.5;
    double value = 1, expected = 1;
    const double pushed = 3;
    std::vector<double> state(2), expected_state(2);
    make_update(spec, {}).apply64({{&value, 1}, state, {&pushed, 1}, 1, 0.5});
    make_update(other, {}).apply64({{&expected, 1}, expected_state, {&pushed, 1}});
    EXPECT_EQ(value, expected) << rule;
    EXPECT_NE(value, 1) << rule;
  }
}

TEST(ServerUpdate, ProximalL1ShrinksTowardsZero) {
  EXPECT_DOUBLE_EQ(run_update<double>("proximal_l1 rate=0.1 l1=2", {1}), 0.7);
  EXPECT_EQ(run_update<double>("proximal_l1 rate=0.1 l1=2", {9}), 0) << "|0.1| < 0.2";
  EXPECT_DOUBLE_EQ(run_update<double>("proximal_l1 rate=0.1 l1=2", {20}), -0.8);
}

TEST(ServerUpdate, HasATextForm) {
  for (const char* text : {"sum", "sgd rate=0.1", "sgd rate=0.1 weight_decay=0.5",
                           "adamw rate=0.1 beta1=0.9 beta2=0.99 epsilon=1e-08 weight_decay=0.01",
                           "momentum rate=0.1 momentum=0.9 nesterov=1 scale=0.5",
                           "adagrad rate=1 epsilon=1e-10 scale=2", "user name=mine",
                           "proximal_l1 rate=0.5 l1=0.25", "momentum rate=0.1 momentum=0.9"}) {
    EXPECT_EQ(to_text(parse_update(text)), text);
  }
  EXPECT_ERROR(
      parse_update("sgdd"), ErrorKind::usage,
      "[server] unknown update rule; got sgdd, expected sum, sgd, momentum, adagrad, adam, "
      "adamw, proximal_l1, user (did you mean sgd?)");
  EXPECT_ERROR(parse_update("sgd momentum=0.9"), ErrorKind::usage,
               "[server] update rule sgd does not take this; got momentum=0.9, expected "
               "name=number, as in `sgd rate=0.01`");
}

TEST(ServerUpdate, UsersFunctionsAreFoundByName) {
  const UserUpdates known{{"largest", {.apply32 = {}, .apply64 = [](const Segment<double>& s) {
                                         s.values[0] = std::max(s.values[0], s.pushed[0]);
                                       }}}};
  double value = 1;
  const double pushed = 3;
  make_update(parse_update("user name=largest scale=2"), known)
      .apply64({{&value, 1}, {}, {&pushed, 1}});
  EXPECT_EQ(value, 6);
  EXPECT_ERROR(make_update(parse_update("user name=least"), known), ErrorKind::usage,
               "[server] the server does not know the update function; got least, expected a name "
               "in ServerOptions::updates");
}

}  // namespace
}  // namespace troika::server
