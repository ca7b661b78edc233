#include "troika/comm/world/node_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "troika/base/text.h"

namespace troika::comm {

NodeMap map_nodes(const std::vector<RankPlace>& places) {
  struct Node {
    std::string name;
    size_t ranks = 0;
    std::set<int> processors = {};
    bool is_known = true;
  };
  std::vector<Node> nodes;
  NodeMap map;
  for (const auto& place : places) {
    auto node = std::ranges::find(nodes, place.node, &Node::name);
    if (node == nodes.end()) node = nodes.insert(nodes.end(), Node{place.node});
    map.nodes.push_back(static_cast<int>(node - nodes.begin()));
    node->ranks += 1;
    node->is_known = node->is_known && !place.processors.empty();
    node->processors.insert(place.processors.begin(), place.processors.end());
  }
  for (const auto& node : nodes) {
    map.crowded.push_back(node.is_known && node.ranks > node.processors.size());
  }
  return map;
}

std::string NodeMap::text() const {
  std::vector<int> flags(crowded.begin(), crowded.end());
  return fmt::format("{};{}", fmt::join(nodes, ","), fmt::join(flags, ","));
}

NodeMap NodeMap::from_text(const std::string& text) {
  NodeMap map;
  const auto parts = split(text, ';');
  for (const auto& number : split(parts.front(), ',')) map.nodes.push_back(std::stoi(number));
  for (const auto& flag : split(parts.back(), ',')) map.crowded.push_back(flag == "1");
  return map;
}

}  // namespace troika::comm
