#include "troika/swarm/token.h"

#include <sodium.h>

#include <algorithm>
#include <array>

#include "troika/base/log.h"
#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr size_t kMostToken = 4096;  // bytes of a request or an answer
constexpr size_t kTokenSignature = 128;
constexpr size_t kMostNonces = size_t{1} << 16;
constexpr WallTime kMostDifference = std::chrono::seconds(60);
constexpr WallTime kNonceLife = std::chrono::minutes(3);
constexpr net::Duration kTokenRetry = std::chrono::seconds(5);

struct TokenBody {
  std::string user, peer;
  int64_t expiry = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TokenBody, user, peer, expiry)

struct TokenRequest {
  std::string peer, authority, nonce;
  int64_t time = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TokenRequest, peer, authority, nonce, time)

struct TokenAnswer {
  int refusal = 0;
  std::string token;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TokenAnswer, refusal, token)

std::pair<std::string, std::string_view> split_signature(std::string_view text) {
  const auto size = std::min(kTokenSignature, text.size());
  return {std::string(text.substr(0, size)), text.substr(size)};
}

}  // namespace

std::string signed_token(const Identity& authority, const Token& token) {
  const auto body = text_of(TokenBody{token.user, token.peer, token.expiry.count()});
  return authority.sign(body) + body;
}

Token token_from(std::string_view text) {
  const auto body = parsed<TokenBody>(split_signature(text).second);
  return {body.user, body.peer, WallTime(body.expiry)};
}

bool admits(const std::string& authority, const std::string& peer, std::string_view text,
            WallTime now, WallTime skew) {
  try {
    const auto token = token_from(text);
    const auto [signature, body] = split_signature(text);
    return token.peer == peer && token.expiry >= now - skew &&
           is_signed_by(authority, body, signature);
  } catch (const Error&) {
    return false;
  }
}

const char* describe(TokenRefusal refusal) {
  static constexpr std::array<const char*, 7> texts{
      "nothing",
      "the request is malformed",
      "the request is for another authority",
      "the clocks of peer and authority differ by more than a minute",
      "the request is not signed by its peer",
      "the request was made before",
      "the peer is not on the list"};
  return texts[std::min(static_cast<size_t>(refusal), texts.size() - 1)];
}

Authority::Authority(net::Endpoint& endpoint, const Identity& identity, WallTime lifetime,
                     WallClock clock)
    : identity_(identity),
      lifetime_(lifetime),
      clock_(std::move(clock)),
      requests_(endpoint, kTokens, kMostToken) {
  requests_.answer_with([this](const std::string&, const std::string& request,
                               const net::Answer& reply) { reply(answer(request)); });
}

TokenRefusal Authority::judge(std::string_view text) {
  const auto now = clock_();
  std::erase_if(nonces_, [&](const auto& nonce) { return now - nonce.second > kNonceLife; });
  const auto [signature, body] = split_signature(text);
  TokenRequest request;
  try {
    request = parsed<TokenRequest>(body);
  } catch (const Error&) {
    return TokenRefusal::malformed;
  }
  if (request.nonce.size() > 64) return TokenRefusal::malformed;
  if (request.authority != identity_.name()) return TokenRefusal::mis_addressed;
  const WallTime time(request.time);
  if (time > now + kMostDifference || time < now - kMostDifference) {
    return TokenRefusal::wrong_time;
  }
  if (!is_signed_by(request.peer, body, signature)) return TokenRefusal::forged;
  const auto known = allowed_.find(request.peer);
  // Checked before the nonce, so that strangers fill no memory.
  if (known == allowed_.end()) return TokenRefusal::not_listed;
  const auto nonce = request.peer + request.nonce;
  if (nonces_.contains(nonce) || nonces_.size() >= kMostNonces) return TokenRefusal::replayed;
  nonces_[nonce] = now;
  return TokenRefusal::none;
}

std::string Authority::answer(std::string_view text) {
  const auto refusal = judge(text);
  if (refusal != TokenRefusal::none) return text_of(TokenAnswer{static_cast<int>(refusal), {}});
  const auto peer = parsed<TokenRequest>(split_signature(text).second).peer;
  return text_of(
      TokenAnswer{0, signed_token(identity_, {allowed_.at(peer), peer, clock_() + lifetime_})});
}

std::string token_request(const Identity& peer, const std::string& authority, WallTime now) {
  std::array<unsigned char, 16> nonce{};
  ::randombytes_buf(nonce.data(), nonce.size());
  std::array<char, 33> digits{};
  ::sodium_bin2hex(digits.data(), digits.size(), nonce.data(), nonce.size());
  const auto body = text_of(TokenRequest{peer.name(), authority, digits.data(), now.count()});
  return peer.sign(body) + body;
}

TokenKeeper::TokenKeeper(net::Endpoint& endpoint, const Identity& identity, std::string authority,
                         std::function<void(const std::string&)> taken,
                         std::function<void(const std::string&)> refused, WallClock clock)
    : endpoint_(endpoint),
      identity_(identity),
      authority_(std::move(authority)),
      taken_(std::move(taken)),
      refused_(std::move(refused)),
      clock_(std::move(clock)),
      requests_(endpoint, kTokens, kMostToken) {
  endpoint_.after(net::Duration(0), alive_.guard([this] { ask(); }));
}

void TokenKeeper::ask() {
  requests_.ask(authority_, token_request(identity_, authority_, clock_()), kTokenRetry,
                alive_.guard([this](const net::Result& result, const std::string& answer) {
                  take(result, answer);
                }));
}

void TokenKeeper::warn(const std::string& problem) {
  if (!problem.empty() && problem != problem_) log::warn("[swarm] gets no token: {}", problem);
  problem_ = problem;
  if (!expiry_ || clock_() < *expiry_) return;
  expiry_.reset();
  log::warn("[swarm] the token of this peer has expired: it does not count for the others");
}

void TokenKeeper::take(const net::Result& result, const std::string& text) {
  auto again = kTokenRetry;
  std::string problem = "the authority does not answer";
  const bool is_answered = result.outcome == net::Outcome::done;
  try {
    if (is_answered) {
      const auto answer = parsed<TokenAnswer>(text);
      problem = describe(static_cast<TokenRefusal>(answer.refusal));
      const auto now = clock_();
      if (answer.refusal == 0 &&
          admits(authority_, identity_.name(), answer.token, now, WallTime(0))) {
        const auto left = token_from(answer.token).expiry - now;
        const WallTime spare = std::min<WallTime>(std::chrono::minutes(1), left / 3);
        again = std::max<net::Duration>(std::chrono::seconds(1), left - spare);
        problem.clear();
        expiry_ = now + left;
        taken_(answer.token);
      }
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  warn(problem);
  if (!problem.empty() && is_answered) refused_(problem);
  endpoint_.after(again, alive_.guard([this] { ask(); }));
}

}  // namespace troika::swarm
