// Who may take part in a swarm: an authority gives tokens to the peers on its list (hivemind's
// authorization).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "troika/net/requests.h"
#include "troika/swarm/alive.h"
#include "troika/swarm/identity.h"
#include "troika/swarm/record.h"

namespace troika::swarm {

// Uses this channel and the next one.
inline constexpr net::Channel kTokens = 0x5351'0006;

// Says that the authority admits a peer until `expiry`.
struct Token {
  std::string user;
  std::string peer;
  WallTime expiry{};
};

// Returns a signed token as a text, for records.
std::string signed_token(const Identity& authority, const Token& token);
// Whether `text` is a token of the authority for the peer that has not expired at `now`.
bool admits(const std::string& authority, const std::string& peer, std::string_view text,
            WallTime now, WallTime skew);
// Throws Error(swarm, failure) for texts that signed_token() did not return. Checks nothing.
Token token_from(std::string_view text);

// A request for a token, or the reason why it is refused.
enum class TokenRefusal : uint8_t {
  none,
  malformed,
  mis_addressed,  // to another authority
  wrong_time,     // by more than a minute
  forged,         // not signed by the peer that it is for
  replayed,       // its nonce was seen in the last three minutes
  not_listed,     // the peer is not on the list, or no longer
};
const char* describe(TokenRefusal refusal);

// Gives tokens on requests. Construct, call and destroy it under Endpoint's rules for callbacks.
class Authority {
 public:
  // `lifetime` of tokens: a peer that is taken off the list takes part until its token expires. The
  // references must outlive it.
  Authority(net::Endpoint& endpoint, const Identity& identity, WallTime lifetime,
            WallClock clock = system_time);

  // Puts a peer on the list, or takes it off.
  void allow(const std::string& peer, const std::string& user) { allowed_[peer] = user; }
  void revoke(const std::string& peer) { allowed_.erase(peer); }

  // Returns why a request is refused; it is remembered otherwise.
  TokenRefusal judge(std::string_view request);

 private:
  std::string answer(std::string_view request);

  const Identity& identity_;
  const WallTime lifetime_;
  const WallClock clock_;
  std::map<std::string, std::string> allowed_;  // peer -> user
  std::map<std::string, WallTime> nonces_;      // seen, and when
  net::Requests requests_;
};

// Returns a request of a peer for a token, with a random nonce.
std::string token_request(const Identity& peer, const std::string& authority, WallTime now);

// Keeps the token of one peer valid: asks the authority for one, and for another when less than a
// minute, or a third of its life, is left. Construct and destroy it under Endpoint's rules for
// callbacks, with the endpoint connected to the authority's.
class TokenKeeper {
 public:
  // `taken` is called with each new token, `refused` with the reason when the authority has refused
  // one. Without a token it asks again after five seconds. Warns once of each reason for none, and
  // once when the token has expired.
  TokenKeeper(net::Endpoint& endpoint, const Identity& identity, std::string authority,
              std::function<void(const std::string& token)> taken,
              std::function<void(const std::string& reason)> refused,
              WallClock clock = system_time);

 private:
  void ask();
  void take(const net::Result& result, const std::string& answer);
  void warn(const std::string& problem);

  net::Endpoint& endpoint_;
  const Identity& identity_;
  const std::string authority_;
  const std::function<void(const std::string&)> taken_, refused_;
  const WallClock clock_;
  net::Requests requests_;
  std::string problem_;             // of the last request
  std::optional<WallTime> expiry_;  // of the token, until it is told
  Alive alive_;
};

}  // namespace troika::swarm
