// Callbacks that do nothing after the end of the object that they use.
#pragma once

#include <memory>
#include <utility>

namespace troika::swarm {

// A data member of the object. The object must end under Endpoint's rules for callbacks
// (net::act_on()), so that no callback runs meanwhile.
class Alive {
 public:
  template <typename Function>
  auto guard(Function function) const {
    return [token = std::weak_ptr<int>(token_),
            function = std::move(function)](auto&&... arguments) mutable {
      if (!token.expired()) function(std::forward<decltype(arguments)>(arguments)...);
    };
  }

 private:
  std::shared_ptr<int> token_ = std::make_shared<int>(0);
};

}  // namespace troika::swarm
