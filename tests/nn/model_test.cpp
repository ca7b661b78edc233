#include "troika/nn/model.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/sequential.h"

namespace troika::nn {
namespace {

using testing::ElementsAre;

// Two linear layers. The second has no block until a test adds one.
struct TwoLayers {
  std::shared_ptr<Model> model = std::make_shared<Model>();
  std::shared_ptr<torch::nn::LinearImpl> a = model->place("net.a", torch::nn::Linear(3, 4));
  std::shared_ptr<torch::nn::LinearImpl> b = model->place("net.b", torch::nn::Linear(4, 2));

  void add(std::string name, std::vector<std::string> owns, std::vector<std::string> borrows = {}) {
    model->add_block({std::move(name), std::move(owns), std::move(borrows),
                      [](const at::Tensor& input) { return input; }});
  }
};

std::vector<std::string> names(const state::StateDict& state) {
  std::vector<std::string> names;
  for (const state::Entry& entry : state) names.push_back(entry.first);
  return names;
}

TEST(Model, PlacesModulesUnderDottedPaths) {
  TwoLayers net;
  EXPECT_THAT(names(named_state(*net.model)),
              ElementsAre("net.a.weight", "net.a.bias", "net.b.weight", "net.b.bias"));
}

TEST(Model, RunsItsBlocksInOrder) {
  auto model = std::make_shared<Model>();
  model->add_block({"add", {}, {}, [](const at::Tensor& x) { return x + 1; }});
  model->add_block({"double", {}, {}, [](const at::Tensor& x) { return x * 2; }});
  EXPECT_EQ(model->forward(torch::tensor(3.0)).item<double>(), 8.0);
}

TEST(Model, RefusesABlockThatComputesNothing) {
  EXPECT_THROW(Model().add_block({"empty", {}, {}, nullptr}), CheckError);
}

TEST(Model, GivesTheStateEachBlockOwns) {
  TwoLayers net;
  net.add("first", {"net.a"});
  net.add("second", {"net.b.weight", "net.b.bias"});
  net.model->verify();
  EXPECT_THAT(names(net.model->owned_state(net.model->blocks()[0])),
              ElementsAre("net.a.weight", "net.a.bias"));
  EXPECT_THAT(names(net.model->owned_state(net.model->blocks()[1])),
              ElementsAre("net.b.weight", "net.b.bias"));
}

TEST(Model, DoesNotTakeAPrefixForAnOwner) {
  auto model = std::make_shared<Model>();
  model->place("layer1", torch::nn::Linear(1, 1));
  model->place("layer10", torch::nn::Linear(1, 1));
  model->add_block({"only", {"layer1"}, {}, [](const at::Tensor& x) { return x; }});
  EXPECT_ERROR(model->verify(), ErrorKind::usage,
               "[nn] layer10.weight is in no block (add it or its module to what the block that "
               "uses it owns)");
}

TEST(Model, RefusesATensorOwnedTwice) {
  TwoLayers net;
  net.add("first", {"net"});
  net.add("second", {"net.b"});
  EXPECT_ERROR(net.model->verify(), ErrorKind::usage,
               "[nn] net.b.weight is owned by two blocks; got first and second, expected one owner "
               "(the other block borrows it)");
}

TEST(Model, RefusesNamesItDoesNotHave) {
  TwoLayers net;
  net.add("all", {"net", "net.c"});
  EXPECT_ERROR(net.model->verify(), ErrorKind::usage,
               "[nn] block all owns net.c, which the model does not have (name a sub-module or a "
               "parameter in full, as in layer1.0.conv1)");
}

TEST(Model, RefusesToBorrowWhatNoOtherBlockOwns) {
  TwoLayers own;
  own.add("all", {"net"}, {"net.a.weight"});
  EXPECT_ERROR(own.model->verify(), ErrorKind::usage,
               "[nn] block all borrows net.a.weight, which no other block owns");
  TwoLayers unknown;
  unknown.add("all", {"net"}, {"other.weight"});
  EXPECT_ERROR(unknown.model->verify(), ErrorKind::usage,
               "[nn] block all borrows other.weight, which no other block owns");
}

TEST(Model, RefusesTwoBlocksOfOneName) {
  TwoLayers net;
  net.add("block", {"net.a"});
  net.add("block", {"net.b"});
  EXPECT_ERROR(net.model->verify(), ErrorKind::usage, "[nn] two blocks are named block");
}

// A module whose only parameter is a given tensor.
struct Tied : torch::nn::Module {
  explicit Tied(at::Tensor weight) { register_parameter("weight", std::move(weight)); }
};

std::shared_ptr<Model> tied_model(std::vector<std::string> borrows) {
  auto model = std::make_shared<Model>();
  const auto embed = model->place("embed", torch::nn::Embedding(5, 3));
  model->place("output", std::make_shared<Tied>(embed->weight));
  const auto forward = [](const at::Tensor& input) { return input; };
  model->add_block({"first", {"embed"}, {}, forward});
  model->add_block({"last", {"output"}, std::move(borrows), forward});
  return model;
}

TEST(Model, WantsTiesDeclared) {
  EXPECT_ERROR(tied_model({})->verify(), ErrorKind::usage,
               "[nn] output.weight is the same tensor as embed.weight of block first (let block "
               "last borrow embed.weight)");
  EXPECT_NO_THROW(tied_model({"embed.weight"})->verify());
}

TEST(State, ListsTiedTensorsOnceUnlessAsked) {
  const auto model = tied_model({});
  EXPECT_THAT(names(named_state(*model)), ElementsAre("embed.weight"));
  EXPECT_THAT(names(named_state(*model, Ties::every_name)),
              ElementsAre("embed.weight", "output.weight"));
  EXPECT_EQ(parameter_count(*model), 15);
}

TEST(State, ListsParametersThenBuffersThenChildren) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 2, 3).bias(false)),
                            torch::nn::BatchNorm2d(2));
  const state::StateDict state = named_state(*net);
  EXPECT_THAT(names(state), ElementsAre("0.weight", "1.weight", "1.bias", "1.running_mean",
                                        "1.running_var", "1.num_batches_tracked"));
  const auto parameters = named_parameters(*net), buffers = named_buffers(*net);
  EXPECT_EQ(parameters.back().first, state[2].first);
  EXPECT_EQ(buffers.front().first, state[3].first);
  EXPECT_EQ(parameters.size() + buffers.size(), state.size());
  EXPECT_EQ(parameter_count(*net), 18 + 2 + 2);
}

TEST(State, SharesMemoryWithTheModule) {
  torch::nn::LinearImpl linear(2, 2);
  torch::NoGradGuard no_grad;
  named_state(linear)[1].second.fill_(7);
  EXPECT_TRUE(linear.bias.eq(7).all().item<bool>());
}

TEST(FromSequential, KeepsNamesAndResults) {
  torch::nn::Sequential net({{"fc", torch::nn::Linear(3, 4)}, {"act", torch::nn::ReLU()}});
  const auto model = from_sequential(net);
  model->verify();
  EXPECT_THAT(names(named_state(*model)), ElementsAre("fc.weight", "fc.bias"));
  ASSERT_EQ(model->blocks().size(), 2);
  EXPECT_EQ(model->blocks()[1].name, "act");
  const at::Tensor input = torch::randn({5, 3});
  EXPECT_TRUE(torch::equal(model->forward(input), net->forward(input)));
  EXPECT_TRUE(torch::equal(model->blocks()[0].forward(input).relu(), net->forward(input)));
}

// Two inputs, a tensor that skips a block, and two outputs.
std::shared_ptr<Model> make_skipping() {
  auto model = std::make_shared<Model>();
  const auto none = std::vector<std::string>{};
  model->add_block({"sum",
                    none,
                    none,
                    [](const Tensors& in) {
                      return Tensors{in[0] + in[1], in[0] * in[1]};
                    },
                    {"a", "b"},
                    {"x", "product"}});
  model->add_block({"double", none, none, [](const at::Tensor& x) { return x * 2; }});
  model->add_block({"both",
                    none,
                    none,
                    [](const Tensors& in) {
                      return Tensors{in[0] - in[1], in[2]};
                    },
                    {"x", "product", "b"},
                    {"x", "b"}});
  return model;
}

TEST(NamedTensors, FlowBetweenBlocks) {
  const auto model = make_skipping();
  EXPECT_THAT(model->input_names(), ElementsAre("a", "b"));
  const auto outputs = model->forward({at::scalar_tensor(3.0), at::scalar_tensor(5.0)});
  ASSERT_EQ(outputs.size(), 2);
  EXPECT_EQ(outputs[0].item<double>(), 1.0);  // 2 (3 + 5) - 3 * 5
  EXPECT_EQ(outputs[1].item<double>(), 5.0);
  const auto& wiring = model->wiring();
  EXPECT_THAT(wiring.names(wiring.into(1, 3)), ElementsAre("x", "product", "b"));
  EXPECT_THAT(wiring.names(wiring.out_of(0, 1)), ElementsAre("x", "product"));
  EXPECT_THAT(wiring.names(wiring.out_of(0, 2)), ElementsAre("product", "x"));
}

TEST(NamedTensors, AreLetGoOfOnceNoBlockNeedsThem) {
  auto model = std::make_shared<Model>();
  int64_t uses_of_first = 0;
  at::Tensor first;
  model->add_block({"one", {}, {}, [&](const at::Tensor& x) { return first = x + 1; }});
  model->add_block({"two", {}, {}, [](const at::Tensor& x) { return x + 1; }});
  model->add_block({"three", {}, {}, [&](const at::Tensor& x) {
                      uses_of_first = first.use_count();
                      return x + 1;
                    }});
  const at::NoGradGuard no_grad;
  model->forward(at::ones({2}));
  EXPECT_EQ(uses_of_first, 1);  // this test's own
}

TEST(NamedTensors, AreAsManyAsABlockSays) {
  const auto model = make_skipping();
  EXPECT_ERROR(model->forward({at::ones({1})}), ErrorKind::usage,
               "[nn] the caller of the model gives other tensors to blocks than are taken; got 1, "
               "expected a, b, all of them defined");
  EXPECT_ERROR(model->forward(at::ones({1})), ErrorKind::usage,
               "[nn] the caller of the model gives other tensors to blocks than are taken; got 1, "
               "expected a, b, all of them defined");
  model->add_block({"less", {}, {}, [](const Tensors& in) { return in[0]; }, {"x"}, {"y", "z"}});
  EXPECT_ERROR(model->forward({at::ones({1}), at::ones({1})}), ErrorKind::usage,
               "[nn] block less gives other tensors to blocks than are taken; got 1, expected y, "
               "z, all of them defined");
  EXPECT_ERROR(
      model->add_block({"twice", {}, {}, [](const Tensors& in) { return in[0]; }, {"x", "x"}}),
      ErrorKind::usage, "[nn] block twice takes `x` twice");
  EXPECT_ERROR(only(make_skipping()->forward({at::ones({1}), at::ones({1})})), ErrorKind::usage,
               "[nn] the model gives several tensors; got 2, expected one (call it with "
               "nn::Tensors)");
}

}  // namespace
}  // namespace troika::nn
