// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// probe asks health endpoints on loopback, each of which has a certificate of its own making.
var probe = &http.Client{
	Timeout:   time.Second,
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec
}

// Health is what to wait for: the process called Name answers 200 at URL. Log is the path of its log.
type Health struct{ Name, URL, Log string }

// Await returns when the process is healthy, or, once running says that it ended, with the end of its log.
func (h Health) Await(ctx context.Context, running func(name string) bool) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	last := "no answer yet"
	for {
		answer, err := ask(ctx, h.URL)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = strings.TrimSpace(err.Error() + " " + answer)
		}
		if !running(h.Name) {
			return fmt.Errorf("%s ended before it was ready; the end of its log (%s):\n%s", h.Name, h.Log, Tail(h.Log, 20))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s at %s: %w (last: %s)", h.Name, h.URL, ctx.Err(), last)
		case <-ticker.C:
		}
	}
}

// ask returns what url answers, and an error unless it is 200.
func ask(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := probe.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return string(body), fmt.Errorf("status %s", response.Status)
	}
	return string(body), nil
}
