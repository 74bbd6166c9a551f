#include "ps/core/lanes/ticker.h"

#include "ps/core/limits.h"

static bool set_period(struct kelp_ticker *ticker, uint32_t period_ms)
{
    bool changed = ticker->period_ms != period_ms;

    ticker->period_ms = period_ms;
    ticker->soon = period_ms > 0 && period_ms <= KELP_PS_TICK_SOON_MS;
    return changed;
}

static uint32_t period_until(uint64_t now_us, uint64_t next_us)
{
    if (next_us == UINT64_MAX) {
        return 0;
    }
    uint64_t wait_ms = next_us > now_us ? (next_us - now_us + 999) / 1000 : 0;
    if (wait_ms < KELP_PS_TICK_MIN_MS) {
        return KELP_PS_TICK_MIN_MS;
    }
    return wait_ms < KELP_PS_TICK_MAX_MS ? (uint32_t)wait_ms : KELP_PS_TICK_MAX_MS;
}

bool kelp_ticker_heard(struct kelp_ticker *ticker)
{
    return !ticker->soon && set_period(ticker, KELP_PS_TICK_MIN_MS);
}

void kelp_ticker_look(struct kelp_ticker *ticker)
{
    ticker->soon = false;
}

bool kelp_ticker_looked(struct kelp_ticker *ticker, uint64_t now_us, uint64_t next_us)
{
    return set_period(ticker, ticker->soon ? KELP_PS_TICK_MIN_MS : period_until(now_us, next_us));
}

void kelp_ticker_stopped(struct kelp_ticker *ticker)
{
    (void)set_period(ticker, 0);
}
