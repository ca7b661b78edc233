#include "troika/compat/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::compat {

namespace {

using torch::autograd::edge_list;
using torch::autograd::Node;
using Nodes = std::unordered_set<Node*>;

// The kinds of leaves that a node depends on.
struct Behind {
  bool inputs = false;
  bool parameters = false;
};

// A graph from its roots to its leaves.
class Graph {
 public:
  Graph(const edge_list& roots, const Nodes& inputs) {
    for (const auto& root : roots) {
      Node* node = root.function.get();
      if (dynamic_cast<torch::autograd::AccumulateGrad*>(node) && !inputs.contains(node)) {
        parameters_.try_emplace(node, root.function);
      }
      visit(node, inputs);
    }
  }

  const std::vector<Node*>& nodes() const { return order_; }  // leaves first
  const Behind& behind(Node* node) const { return behind_.at(node); }
  // Returns the accumulators of the parameters behind these nodes.
  edge_list parameters_behind(const std::vector<Node*>& from) const {
    edge_list result;
    Nodes seen;
    std::vector<Node*> open = from;
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      if (!seen.insert(node).second || !behind(node).parameters) continue;
      if (const auto found = parameters_.find(node); found != parameters_.end()) {
        result.emplace_back(found->second, 0);
      }
      for (const auto& next : node->next_edges()) {
        if (next.is_valid()) open.push_back(next.function.get());
      }
    }
    return result;
  }

 private:
  // Without recursion: graphs are as deep as models.
  void visit(Node* root, const Nodes& inputs) {
    std::vector<std::pair<Node*, size_t>> open;
    const auto enter = [&](Node* node) {
      if (behind_.try_emplace(node).second) open.emplace_back(node, 0);
    };
    enter(root);
    while (!open.empty()) {
      auto& [node, next] = open.back();
      const auto& edges = node->next_edges();
      if (next < edges.size()) {
        const auto& edge = edges[next++];
        if (!edge.is_valid()) continue;
        if (dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get()) &&
            !inputs.contains(edge.function.get())) {
          parameters_.try_emplace(edge.function.get(), edge.function);
        }
        enter(edge.function.get());  // may move `open`
        continue;
      }
      auto& own = behind_.at(node);
      own.inputs = inputs.contains(node);
      own.parameters = parameters_.contains(node);
      for (const auto& edge : edges) {
        if (!edge.is_valid()) continue;
        own.inputs |= behind_.at(edge.function.get()).inputs;
        own.parameters |= behind_.at(edge.function.get()).parameters;
      }
      order_.push_back(node);
      open.pop_back();
    }
  }

  std::unordered_map<Node*, Behind> behind_;
  std::unordered_map<Node*, NodePointer> parameters_;
  std::vector<Node*> order_;
};

std::vector<at::Tensor> execute(const edge_list& roots, const std::vector<at::Tensor>& gradients,
                                bool keep_graph, bool accumulate, const edge_list& outputs) {
  return torch::autograd::Engine::get_default_engine().execute(
      roots, gradients, keep_graph, /*create_graph=*/false, accumulate, outputs);
}

// Returns the next nodes of `node` that lead to parameters but not to inputs.
std::vector<Node*> parameter_side(const Graph& graph, Node* node) {
  std::vector<Node*> result;
  for (const auto& next : node->next_edges()) {
    if (!next.is_valid()) continue;
    const auto& behind = graph.behind(next.function.get());
    if (behind.parameters && !behind.inputs) result.push_back(next.function.get());
  }
  return result;
}

// Whether the next nodes of `node` that lead to inputs also lead to one of these parameters, which
// several layers then use.
bool shares(const Graph& graph, Node* node, const edge_list& parameters) {
  std::vector<Node*> other;
  for (const auto& next : node->next_edges()) {
    if (next.is_valid() && graph.behind(next.function.get()).inputs) {
      other.push_back(next.function.get());
    }
  }
  for (const auto& one : graph.parameters_behind(other)) {
    const bool is_shared = std::ranges::any_of(
        parameters, [&](const auto& edge) { return edge.function == one.function; });
    if (is_shared) return true;
  }
  return false;
}

// Adds the parameters to `reached`. Returns whether one of them was already in `reached`. The
// gradient of such a parameter must be computed in one part: with several parts, its hooks would be
// called for each.
bool repeats(const edge_list& parameters, Nodes& reached) {
  bool result = false;
  for (const auto& one : parameters) result |= !reached.insert(one.function.get()).second;
  return result;
}

}  // namespace

SplitBackward::SplitBackward(const std::vector<at::Tensor>& roots,
                             const std::vector<at::Tensor>& gradients,
                             const std::vector<at::Tensor>& inputs)
    : of_inputs_(inputs.size()) {
  edge_list from;
  std::vector<at::Tensor> given;
  for (size_t i = 0; i < roots.size(); ++i) {
    from.push_back(torch::autograd::impl::gradient_edge(roots[i]));
    given.push_back(gradients.empty() ? at::ones_like(roots[i]) : gradients[i]);
  }
  edge_list wanted;
  Nodes accumulators;
  for (const auto& input : inputs) {
    wanted.emplace_back(torch::autograd::impl::grad_accumulator(input), 0);
    accumulators.insert(wanted.back().function.get());
  }
  const Graph graph(from, accumulators);
  const auto whole = [&] {
    Part part{from, given, {}};
    std::vector<Node*> all;
    for (const auto& root : from) all.push_back(root.function.get());
    part.to = graph.parameters_behind(all);
    return part;
  };

  // The cuts are the nodes of which some edges lead to inputs, and others only to parameters.
  struct Cut {
    Node* node;
    Part part;
    size_t first = 0;  // of its gradients among the results
  };
  std::vector<Cut> cuts;
  std::unordered_map<Node*, NodePointer> owners;
  for (const auto& root : from) owners.try_emplace(root.function.get(), root.function);
  for (Node* node : graph.nodes()) {
    for (const auto& next : node->next_edges()) {
      if (next.is_valid()) owners.try_emplace(next.function.get(), next.function);
    }
  }
  bool is_shared = inputs.empty();
  for (Node* node : graph.nodes()) {
    if (!graph.behind(node).inputs) continue;
    const auto side = parameter_side(graph, node);
    if (side.empty()) continue;
    Cut cut{node, {{}, {}, graph.parameters_behind(side)}};
    is_shared |= shares(graph, node, cut.part.to);
    cuts.push_back(std::move(cut));
  }
  // The roots that depend only on parameters.
  for (size_t i = 0; i < from.size(); ++i) {
    const auto& behind = graph.behind(from[i].function.get());
    if (behind.inputs || !behind.parameters) continue;
    parts_.push_back({{from[i]}, {given[i]}, graph.parameters_behind({from[i].function.get()})});
  }
  Nodes reached;
  for (const auto& part : parts_) is_shared |= repeats(part.to, reached);
  for (const auto& cut : cuts) is_shared |= repeats(cut.part.to, reached);
  if (is_shared) {
    // In this rare case the second part runs through the whole graph again.
    parts_ = {whole()};
    cuts.clear();
  }
  for (auto& cut : cuts) {
    cut.first = wanted.size();
    for (uint32_t k = 0; k < cut.node->num_inputs(); ++k) {
      wanted.emplace_back(owners.at(cut.node), k);
    }
  }
  if (!inputs.empty()) {
    auto results = execute(from, given, /*keep_graph=*/true, /*accumulate=*/false, wanted);
    std::move(results.begin(), results.begin() + static_cast<int64_t>(inputs.size()),
              of_inputs_.begin());
    for (auto& cut : cuts) {
      for (uint32_t k = 0; k < cut.node->num_inputs(); ++k) {
        auto& gradient = results[cut.first + k];
        if (!gradient.defined()) continue;
        cut.part.from.emplace_back(owners.at(cut.node), k);
        cut.part.gradients.push_back(std::move(gradient));
      }
      if (!cut.part.from.empty()) parts_.push_back(std::move(cut.part));
    }
  }
  if (is_shared) return;
  Nodes kept;
  for (const auto& cut : cuts) kept.insert(cut.node);
  for (Node* node : graph.nodes()) {
    if (graph.behind(node).inputs && !kept.contains(node)) node->release_variables();
  }
}

std::vector<at::Tensor> SplitBackward::gradients() const {
  std::vector<at::Tensor> all;
  for (const auto& part : parts_) {
    all.insert(all.end(), part.gradients.begin(), part.gradients.end());
  }
  return all;
}

void SplitBackward::run_weights() {
  for (auto& part : std::exchange(parts_, {})) {
    if (part.to.empty()) continue;
    execute(part.from, part.gradients, /*keep_graph=*/false, /*accumulate=*/true, part.to);
  }
}

}  // namespace troika::compat
