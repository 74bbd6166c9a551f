#include "common/text.h"

#include <stdbool.h>
#include <stdlib.h>

kelp_status kelp_text_open(struct kelp_text *text, struct kelp_error *reterr)
{
    *text = (struct kelp_text){0};
    text->out = open_memstream(&text->bytes, &text->count);
    return text->out ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

kelp_status kelp_text_close(struct kelp_text *text, char **ret_bytes, size_t *ret_count,
                            struct kelp_error *reterr)
{
    /* A write that failed, a flush that fails now, and the last reallocation, which leaves NULL. */
    bool failed = ferror(text->out) != 0;
    failed = fclose(text->out) != 0 || failed || !text->bytes;
    if (failed) {
        free(text->bytes);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    *ret_bytes = text->bytes;
    *ret_count = text->count;
    return KELP_OK;
}

void kelp_text_discard(struct kelp_text *text)
{
    (void)fclose(text->out); /* forgotten anyway */
    free(text->bytes);
}
